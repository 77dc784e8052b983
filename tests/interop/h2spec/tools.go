//go:build tools

// Package tools pins h2spec and what it needs, which has no go.mod of its own.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
