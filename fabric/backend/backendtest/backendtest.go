// Package backendtest builds the libraries between ggml and the device for tests, from their sources in this
// repository.
package backendtest

import (
	"context"
	"os"
	"path/filepath"

	"tensorcast/internal/cc"
)

// Library is one of the two libraries.
type Library int

// The libraries.
const (
	Backend   Library = iota // libggml-tfmbs.so, a backend of ggml
	Intercept                // libtfmbs_intercept.so, for LD_PRELOAD
)

// sources are the files of a library below the repository's root. cc.Compile takes the text of the first one. The
// Makefile has the same lists.
func (l Library) sources() (first string, others []string) {
	others = []string{
		"fabric/backend/tfmbs_ggml.c", "fabric/backend/tfmbs_weights.c", "fabric/backend/tfmbs_reference.c",
		"fabric/backend/tfmbs_products.c", "fabric/driver/tfmbs_device.c",
	}
	if l == Intercept {
		return "fabric/backend/tfmbs_intercept.c", append(others, "fabric/backend/tfmbs_detect.c")
	}
	return "fabric/backend/tfmbs_backend.c", others
}

// Compile builds a library at path. root is the way to the repository's root from the test's directory; flags come
// beside those of the Makefile. Errors are those of cc.Compile, or of reading the sources.
func Compile(ctx context.Context, root, path string, l Library, flags ...string) error {
	first, others := l.sources()
	text, err := os.ReadFile(filepath.Join(root, first))
	if err != nil {
		return err
	}
	all := []string{
		"-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs", "-pthread",
		"-I" + filepath.Join(root, "include"), "-I" + filepath.Join(root, "fabric/backend"),
	}
	if l == Intercept {
		all = append(all, "-DAPI=") // the functions of the driver are no part of this library's interface
	}
	all = append(append(all, flags...), "-x", "c")
	for _, f := range others {
		all = append(all, filepath.Join(root, f))
	}
	return cc.Compile(ctx, path, string(text), all...)
}
