// Command load is the load program with the paths that need no further module.
package main

import "isthmus.test/bench/load"

func main() { load.Main(nil, nil) }
