package preload

// This file compiles the shim, once for each user and version of the source.

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
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

// shimSource is the shim with its includes inserted. It is compiled from standard input, so the
// compiler finds no files next to it.
var shimSource = ggml.IncludeGathers(strings.Replace(shimText, `#include "wire.h"`, wireHeaderText, 1))

var compilerFlags = []string{"-shared", "-fPIC", "-fvisibility=hidden", "-fexceptions", "-fno-strict-aliasing"}

// separators separate names in LD_PRELOAD, so no name may contain them.
const separators = " :"

// tempPrefix begins the names of the directories with a shim that is not in the cache.
const tempPrefix = "tensorcast-preload-"

// buildShim returns the path of the shim. If foreign is set, programs of other users must be able
// to open it. The caller must remove temp in the end. temp is nil if the shim is in the cache.
func buildShim(ctx context.Context, foreign bool) (path string, temp *temporary, err error) {
	cached, err := cachedShim(ctx)
	if err != nil && !errors.Is(err, errNoCache) {
		return "", nil, err
	}
	if cached != "" && !foreign && !strings.ContainsAny(cached, separators) {
		return cached, nil, nil
	}
	if temp, err = newTemporary(os.TempDir(), tempPrefix); err != nil {
		return "", nil, fmt.Errorf("make the shim: %w", err)
	}
	path = filepath.Join(temp.path, "shim.so")
	if cached != "" {
		err = copyFile(path, cached)
	} else {
		err = compileShim(ctx, path)
	}
	if err == nil && strings.ContainsAny(path, separators) {
		err = fmt.Errorf("the directory %q has a space or a colon in its name, which LD_PRELOAD does not allow: "+
			"set TMPDIR to another one", os.TempDir())
	}
	if err == nil {
		err = errors.Join(os.Chmod(temp.path, 0o755), os.Chmod(path, 0o755))
	}
	if err != nil {
		return "", nil, errors.Join(err, temp.remove())
	}
	return path, temp, nil
}

// errNoCache means that the user has no cache directory of their own.
var errNoCache = errors.New("no cache directory")

// cachedShim returns the shim in the user's cache directory. It compiles the shim if it is not
// there. The file name is a hash of everything that determines its contents.
func cachedShim(ctx context.Context) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", errNoCache
	}
	dir = filepath.Join(dir, "tensorcast")
	if err := os.MkdirAll(dir, 0o755); err != nil || !isOurs(dir, fs.ModeDir) {
		return "", errNoCache
	}
	sum := sha256.Sum256([]byte(shimSource + "\x00" + cc.Flags + " " + strings.Join(compilerFlags, " ") + "\x00" +
		runtime.GOARCH))
	path := filepath.Join(dir, fmt.Sprintf("preload-%x.so", sum[:8]))
	if isOurs(path, 0) {
		return path, nil
	}
	tmp, err := newTemporary(dir, ".new-")
	if err != nil {
		return "", errNoCache
	}
	defer func() { _ = tmp.remove() }() // the next session tries again
	made := filepath.Join(tmp.path, "shim.so")
	if err := compileShim(ctx, made); err != nil {
		return "", err
	}
	// If another process compiled it at the same time, it made the same file.
	if err := os.Rename(made, path); err != nil {
		return "", fmt.Errorf("keep the shim: %w", err)
	}
	return path, nil
}

// isOurs reports whether the file is of this type (0: a regular file) and only this user can write
// it. Nothing else may be loaded into the user's programs.
func isOurs(path string, is fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid() && info.Mode().Perm()&0o022 == 0 && info.Mode().Type() == is
}

// compileShim writes the shim to the new file path.
func compileShim(ctx context.Context, path string) error {
	err := cc.Compile(ctx, path, shimSource, compilerFlags...)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cc.ErrNoCompiler):
		return fmt.Errorf("%w: %w", ErrNoCompiler, err)
	}
	return fmt.Errorf("compile the shim: %w (are the C library's headers installed? Debian, Ubuntu: apt-get "+
		"install libc6-dev)", err)
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
