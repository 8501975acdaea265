package llama

// This file installs polars for Node, in which tests open exported tables. It is fetched as
// llama.cpp is: from npm packages of a fixed version, whose hashes are checked.

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// polars comes in two packages: the part that is written in JavaScript, and the library that it
// loads. Both are for amd64.
var polars = []npmPackage{
	{
		name: "nodejs-polars", version: "0.25.2", arch: "amd64",
		integrity: "sha512-2XoG+EEC9sq21hW0iPyWdBNkvonRhu9Aw0NVJrGvRloyD87xCrdafa2T6l2le3Waij7qTc5BOon8YYVh2aCuMQ==",
	},
	{
		name: "nodejs-polars-linux-x64-gnu", version: "0.25.2", arch: "amd64",
		integrity: "sha512-N41fQJq+cedLhSF3Pb1Rs6g+MBgByrqHnOtcJmD8wzCLS48t28AB3rD48jBjY4UCYnZV6+cQpkr3WrCbrH1C/g==",
	},
}

// Polars returns a directory for NODE_PATH in which nodejs-polars is. The cache and the errors are those of [Install].
func Polars(ctx context.Context) (dir string, err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	root := filepath.Join(cache, "polars-"+polars[0].version)
	err = makeDir(ctx, root, func(tmp string) error {
		for _, p := range polars {
			if err := p.unpackAll(ctx, tmp, filepath.Join(tmp, "node_modules", p.name)); err != nil {
				return err
			}
		}
		return nil
	})
	return filepath.Join(root, "node_modules"), err
}

// unpackAll fetches the package to tmp and unpacks all of it to dir.
func (p npmPackage) unpackAll(ctx context.Context, tmp, dir string) error {
	f, err := p.download(ctx, tmp)
	if err != nil {
		return err
	}
	err = unpackTree(f, dir)
	if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return fmt.Errorf("unpack %s@%s: %w", p.name, p.version, err)
	}
	return nil
}

// unpackTree extracts the regular files of a package, without the directory that all of them are
// in. Names that lead out of dir are an error, and links are not extracted.
func unpackTree(tgz io.Reader, dir string) error {
	z, err := gzip.NewReader(tgz)
	if err != nil {
		return err
	}
	r := tar.NewReader(io.LimitReader(z, maxUnpackedBytes))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		_, name, _ := strings.Cut(h.Name, "/")
		if !filepath.IsLocal(name) {
			return fmt.Errorf("a file %q", h.Name)
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := writeFile(path, r, 0o644); err != nil {
			return err
		}
	}
}
