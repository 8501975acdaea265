package llama

// This file makes virtual environments of Python with packages of its index, whose hashes are checked. Tests open
// tables in them and compare with other readers of GGUF.

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// dataFrames are pandas, pyarrow, polars, DuckDB and gguf, with what they depend on, for Python 3.11 to 3.13 on amd64.
// A newer version has other hashes: pip download fetches the files, and sha256sum tells them.
//
//go:embed python.txt
var dataFrames string

// Python returns a Python interpreter that can import pandas, pyarrow, polars, duckdb and gguf. It is one of a virtual
// environment and takes 620 MiB of disk. The cache and the errors are those of [Install].
func Python(ctx context.Context) (python string, err error) {
	if err := checkPython(ctx); err != nil {
		return "", err
	}
	return pythonWith(ctx, "python-1", dataFrames)
}

// checkPython returns [ErrUnavailable] if the hashes of compiled packages are not those of this machine's Python.
func checkPython(ctx context.Context) error {
	const supported = `import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))`
	if runtime.GOARCH == "amd64" && runIn(ctx, ".", "python3", "-c", supported) == nil {
		return nil
	}
	return fmt.Errorf("%w: Python's packages have fixed hashes, which are those for Python 3.11 to 3.13 on amd64",
		ErrUnavailable)
}

// pythonWith returns the interpreter of a virtual environment with these packages, which are listed with their hashes
// as pip wants it. Then come packages that are built from source by what the environment has by then. The environment
// is in the cache under that name, which changes with the lists.
func pythonWith(ctx context.Context, name, requirements string, sources ...string) (python string, err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, name)
	err = makeDir(ctx, root, func(tmp string) error {
		if err := makeVenv(ctx, tmp); err != nil {
			return err
		}
		// Its programs name the directory in which they were installed, which gets another name now. The interpreter
		// does not.
		if err := installIn(ctx, tmp, requirements); err != nil {
			return err
		}
		for _, source := range sources { // pip would fetch what builds it without looking at hashes
			if err := installIn(ctx, tmp, source, "--no-build-isolation", "--no-deps"); err != nil {
				return err
			}
		}
		return nil
	})
	return filepath.Join(root, "bin", "python3"), err
}

// installIn installs packages in the virtual environment dir.
func installIn(ctx context.Context, dir, requirements string, flags ...string) error {
	list := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(list, []byte(requirements), 0o600); err != nil {
		return err
	}
	args := append([]string{"-m", "pip", "install", "--quiet", "--no-cache-dir", "--require-hashes"}, flags...)
	return runIn(ctx, dir, filepath.Join(dir, "bin", "python3"), append(args, "--requirement", list)...)
}

// makeVenv makes a virtual environment with pip in the directory dir.
func makeVenv(ctx context.Context, dir string) error {
	if err := runIn(ctx, filepath.Dir(dir), "python3", "-m", "venv", dir); err != nil {
		return fmt.Errorf("%w (on Debian or Ubuntu: apt-get install python3-venv)", err)
	}
	return nil
}
