package preload

// This file compiles the shim, once per user and version of the source.

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"tensorcast/ggml"
	"tensorcast/internal/cc"
)

//go:generate sh -c "go tool cgo -godefs defs.go | gofmt > wire_defs.go; rm -rf _obj _cgo_*.o"

//go:embed shim.c
var shimText string

//go:embed wire.h
var wireHeaderText string

// shimSource is the shim with all that it includes: it is compiled from standard input, where there are no files beside it.
var shimSource = ggml.IncludeGathers(strings.Replace(shimText, `#include "wire.h"`, wireHeaderText, 1))

var compilerFlags = []string{"-shared", "-fPIC", "-fvisibility=hidden", "-fexceptions", "-fno-strict-aliasing"}

// separators part the names in LD_PRELOAD; no name can hold one.
const separators = " :"

// build returns the path of the shim, which programs of another user must be able to open if foreign is set. temp is a directory that the caller
// removes in the end, "" if the shim is in the cache.
func build(ctx context.Context, foreign bool) (path, temp string, err error) {
	cached, err := cachedShim(ctx)
	if err != nil && !errors.Is(err, errNoCache) {
		return "", "", err
	}
	if cached != "" && !foreign && !strings.ContainsAny(cached, separators) {
		return cached, "", nil
	}
	if temp, err = os.MkdirTemp("", "tensorcast-preload-"); err != nil {
		return "", "", fmt.Errorf("make the shim: %w", err)
	}
	path = filepath.Join(temp, "shim.so")
	if cached != "" {
		err = copyFile(path, cached)
	} else {
		err = compile(ctx, path)
	}
	if err == nil && strings.ContainsAny(path, separators) {
		err = fmt.Errorf("the directory %q has a space or a colon in its name, which LD_PRELOAD does not allow: set TMPDIR to another one", os.TempDir())
	}
	if err == nil {
		err = errors.Join(os.Chmod(temp, 0o755), os.Chmod(path, 0o755))
	}
	if err != nil {
		return "", "", errors.Join(err, os.RemoveAll(temp))
	}
	return path, temp, nil
}

// errNoCache says that the user has no cache directory that is his.
var errNoCache = errors.New("no cache directory")

// cachedShim returns the shim in the user's cache directory, compiled first if it is not there. Its name stands for all that went into it.
func cachedShim(ctx context.Context) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", errNoCache
	}
	dir = filepath.Join(dir, "tensorcast")
	if err := os.MkdirAll(dir, 0o755); err != nil || !ours(dir) {
		return "", errNoCache
	}
	sum := sha256.Sum256([]byte(shimSource + "\x00" + cc.Flags + " " + strings.Join(compilerFlags, " ") + "\x00" + runtime.GOARCH))
	path := filepath.Join(dir, fmt.Sprintf("preload-%x.so", sum[:8]))
	if ours(path) {
		return path, nil
	}
	tmp, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return "", errNoCache
	}
	defer os.RemoveAll(tmp)
	made := filepath.Join(tmp, "shim.so")
	if err := compile(ctx, made); err != nil {
		return "", err
	}
	// Whoever else compiled it at the same time made the same.
	if err := os.Rename(made, path); err != nil {
		return "", fmt.Errorf("keep the shim: %w", err)
	}
	return path, nil
}

// ours: what somebody else can write is not loaded into the user's programs.
func ours(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && info.Mode().Perm()&0o022 == 0 && info.Mode().Type()&^os.ModeDir == 0
}

// compile writes the shim to the new file path.
func compile(ctx context.Context, path string) error {
	err := cc.Compile(ctx, path, shimSource, compilerFlags...)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cc.ErrNoCompiler):
		return fmt.Errorf("%w: %w", ErrNoCompiler, err)
	}
	return fmt.Errorf("compile the shim: %w (are the C library's headers installed? Debian, Ubuntu: apt-get install libc6-dev)", err)
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy the shim: %w", err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		return fmt.Errorf("copy the shim: %w", err)
	}
	return nil
}
