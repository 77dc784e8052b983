"""``isthmus up``: a whole Isthmus on one machine."""
