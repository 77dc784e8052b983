module isthmus.test/halfclose

go 1.21
