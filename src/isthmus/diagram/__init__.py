"""Diagrams as SVG: elements, cards with texts, walls, and one style for light and dark.

Pure. hosting/picture_svg.py and lab/picture_svg.py decide what a picture shows and where its parts
are. A new colour or kind of text belongs to page.py, a
new way to write on a card to cards.py, a new element to svg.py.
"""
