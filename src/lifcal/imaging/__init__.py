"""Reading and writing images, makers' files, markers. Only this room and `grid` import OpenCV."""
