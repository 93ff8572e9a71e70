"""One module per resource; each answers ``endpoints()``, the table that the app is built from."""
