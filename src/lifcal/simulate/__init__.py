"""Truth for tests, docs and the demo: scenes, optics, rendering."""
