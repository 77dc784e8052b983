module isthmus.test/bench/load

go 1.19
