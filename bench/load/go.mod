module isthmus-bench/load

go 1.19
