"""Diagrams as SVG: elements, cards with texts on them, walls, and one look by day and by night.

Pure. What a picture shows and where its parts stand is decided by those who draw it,
hosting/picture_svg.py and lab/picture_svg.py. A new colour or kind of text belongs to page.py, a
new way to write on a card to cards.py, a new element to svg.py.
"""
