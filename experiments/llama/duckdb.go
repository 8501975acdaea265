package llama

// This file installs DuckDB, in which tests open exported tables. It is fetched as llama.cpp is:
// from an npm package of a fixed version, whose hash is checked.

import (
	"context"
	"path/filepath"
)

var duckDB = npmPackage{
	name:      "@duckdb/node-bindings-linux-x64",
	version:   "1.5.6-r.1",
	arch:      "amd64",
	integrity: "sha512-IXcrZJE6kEqM0Z4wwdVnGBHX/frOS33VPNAwDXQ/Q+Fs84b058Qe94chrCCIcNJlG8Y3UHIUU4eBeCQxW5mN1Q==",
	libs:      "package",
	library:   "libduckdb.",
}

// DuckDB returns the directory of libduckdb.so. The cache and the errors are those of [Install].
func DuckDB(ctx context.Context) (dir string, err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "duckdb-"+duckDB.version)
	if err := makeDir(ctx, root, func(tmp string) error { return duckDB.unpackTo(ctx, tmp) }); err != nil {
		return "", err
	}
	return filepath.Join(root, "bin"), nil
}
