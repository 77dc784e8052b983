//go:build tools

// Package tools names the program that this module builds, so that its version
// is pinned by its go.mod.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
