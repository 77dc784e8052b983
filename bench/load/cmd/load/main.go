// Command load is the load program with the ways that need no module.
package main

import "isthmus.test/bench/load"

func main() { load.Main(nil, nil) }
