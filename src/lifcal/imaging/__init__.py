"""Reading and writing images, makers' files, markers: the only room that knows OpenCV."""
