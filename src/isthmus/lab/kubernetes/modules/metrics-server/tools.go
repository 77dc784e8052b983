//go:build tools

// What is built of this module; nothing compiles this file.
package tools

import (
	_ "sigs.k8s.io/metrics-server/cmd/metrics-server"
)
