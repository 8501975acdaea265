package llama

// This file tests the installation with a fake npm: what is fetched, checked, unpacked and cached.

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// entry is one member of an archive; link makes it a symbolic link.
type entry struct{ name, content, link string }

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.content)), Typeflag: tar.TypeReg}
		if e.link != "" {
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// fakeNPM makes script the only program named npm, and keeps the shell's own tools.
func fakeNPM(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "npm"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
}

// packageOf returns the package that the tgz is, and makes npm give it.
func packageOf(t *testing.T, tgz []byte) npmPackage {
	t.Helper()
	path := filepath.Join(t.TempDir(), "package.tgz")
	if err := os.WriteFile(path, tgz, 0o644); err != nil {
		t.Fatal(err)
	}
	// npm pack NAME@VERSION --pack-destination DIR ...
	fakeNPM(t, fmt.Sprintf(`test "$1 $2 $3" = "pack @x/y@1.0.0 --pack-destination" && cp %s "$4/x-y-1.0.0.tgz"`, path))
	sum := sha512.Sum512(tgz)
	return npmPackage{name: "@x/y", version: "1.0.0", arch: runtime.GOARCH, integrity: "sha512-" +
		base64.StdEncoding.EncodeToString(sum[:]), libs: "package/bins/linux-x64"}
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			files = append(files, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestInstallUnpacksOnlyKnownPlaces(t *testing.T) {
	p := packageOf(t, archive(t,
		entry{name: "package/LICENSE", content: "MIT"},
		entry{name: "package/package.json", content: "{}"},
		entry{name: "package/bins/linux-x64/libllama.v1.so", content: "llama"},
		entry{name: "package/bins/linux-x64/libggml-base.so", content: "base"},
		entry{name: "package/bins/linux-x64/addon.node", content: "no library"},
		entry{name: "package/bins/linux-x64/../../../../up.so", content: "evil"},
		entry{name: "/package/bins/linux-x64/root.so", content: "evil"},
		entry{name: "package/bins/linux-x64/libggml-link.so", link: "/etc/passwd"},
		entry{name: "package/bins/linux-x64/deeper/libggml-x.so", content: "elsewhere"},
	))
	cache := t.TempDir()
	in, err := install(t.Context(), cache, "", p)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Base(filepath.Dir(in.Dir))
	want := []string{
		".lock",
		"1.0.0/LICENSE", "1.0.0/bin/libggml-base.so", "1.0.0/bin/libllama.v1.so",
		bin + "/bin/libggml-base.so", bin + "/bin/libllama.v1.so", bin + "/bin/llamarun",
	}
	got := tree(t, cache)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("cache has %v, want %v", got, want)
	}
	if out, err := os.ReadFile(filepath.Join(in.Dir, "libggml-base.so")); err != nil || string(out) != "base" {
		t.Errorf("libggml-base.so is %q, %v; want base", out, err)
	}

	// The second time takes all from the cache: it needs neither npm nor gcc.
	t.Setenv("PATH", t.TempDir())
	again, err := install(t.Context(), cache, "", p)
	if err != nil || *again != *in {
		t.Errorf("from the cache: %v, %v; want %v", again, err, in)
	}
}

func TestInstallFails(t *testing.T) {
	good := archive(t, entry{name: "package/bins/linux-x64/libllama.so", content: "llama"})
	cut := good[:len(good)-20]
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T) npmPackage
		is      error // nil: any
		message string
	}{
		{"other bytes", func(t *testing.T) npmPackage {
			packageOf(t, append(slices.Clone(good), 0))
			p := prebuilts[0]
			p.name, p.version = "@x/y", "1.0.0"
			return p
		}, ErrIntegrity, prebuilts[0].integrity},
		{"not an archive", func(t *testing.T) npmPackage {
			return packageOf(t, []byte("hello, this is no archive"))
		}, nil, "gzip: invalid header"},
		{"archive cut short", func(t *testing.T) npmPackage { return packageOf(t, cut) }, nil, "unexpected EOF"},
		{"no library in it", func(t *testing.T) npmPackage {
			return packageOf(t, archive(t, entry{name: "package/LICENSE", content: "MIT"}))
		}, nil, "no libllama"},
		{"npm absent", func(t *testing.T) npmPackage {
			t.Setenv("PATH", t.TempDir())
			return prebuilts[0]
		}, ErrUnavailable, "apt-get install npm"},
		{"npm fails", func(t *testing.T) npmPackage {
			fakeNPM(t, "echo npm error code ENOTFOUND; echo npm error; echo npm error A complete log of this "+
				"run; exit 7")
			return prebuilts[0]
		}, ErrUnavailable, "exit status 7: code ENOTFOUND"},
		{"npm gives nothing", func(t *testing.T) npmPackage { fakeNPM(t, "exit 0"); return prebuilts[0] }, nil,
			"left 0 files"},
		{"gcc absent", func(t *testing.T) npmPackage {
			p := packageOf(t, good)
			if err := p.unpackTo(t.Context(), t.TempDir()); err != nil {
				t.Fatal(err)
			}
			// Only npm is on the path. Its script finds cp by its full path.
			npm, _, _ := strings.Cut(os.Getenv("PATH"), ":")
			script, err := os.ReadFile(filepath.Join(npm, "npm"))
			if err != nil {
				t.Fatal(err)
			}
			script = bytes.Replace(script, []byte("cp "), []byte("/bin/cp "), 1)
			if err := os.WriteFile(filepath.Join(npm, "npm"), script, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", npm)
			return p
		}, ErrUnavailable, "apt-get install gcc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.prepare(t)
			cache := t.TempDir()
			in, err := install(t.Context(), cache, "", p)
			if err == nil {
				t.Fatalf("installed %v, want an error", in)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %q, want %q", err, c.is)
			}
			if !strings.Contains(err.Error(), c.message) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error is %q, want one line with %q", err, c.message)
			}
			for _, f := range tree(t, cache) {
				// A whole package stays when only the compiler is missing.
				if f != ".lock" && !strings.HasPrefix(f, "1.0.0/bin/") {
					t.Errorf("left %s", f)
				}
			}
		})
	}
}

func TestInstallStops(t *testing.T) {
	fakeNPM(t, "exec sleep 60")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := install(ctx, t.TempDir(), "", prebuilts[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
}

func TestFindLibs(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{"src/README", "in-bin/bin/libllama.so.0", "in-build/build/bin/libllama.so",
		"same/libllama.v2.so", "common/libllama-common.so"} {
		path := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]string{"in-bin": "in-bin/bin", "in-build": "in-build/build/bin",
		"same": "same", "src": "", "common": "", "none": "", "src/README": ""} {
		got, err := findLibs(filepath.Join(root, dir))
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), envLlama) {
				t.Errorf("%s: %q, %v; want an error that names the variable", dir, got, err)
			}
		} else if err != nil || got != filepath.Join(root, want) {
			t.Errorf("%s: %q, %v; want %s", dir, got, err, want)
		}
	}
}

func TestMakeDirOnce(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "x")
	if err := os.Mkdir(filepath.Join(parent, newPrefix+"killed"), 0o755); err != nil {
		t.Fatal(err)
	}

	failed := errors.New("full")
	if err := makeDir(t.Context(), dir, func(string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error is %v, want %v", err, failed)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a failed fill made the directory")
	}

	var filled atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			err := makeDir(t.Context(), dir, func(tmp string) error {
				filled.Add(1)
				return os.WriteFile(filepath.Join(tmp, "f"), nil, 0o644)
			})
			if err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
				// The directory must be whole as soon as makeDir returns.
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := filled.Load(); n != 1 {
		t.Errorf("filled %d times, want once", n)
	}
	if got := tree(t, parent); !slices.Equal(got, []string{".lock", "x/f"}) {
		t.Errorf("left %v, want the lock and the file", got)
	}
	if _, err := os.Stat(filepath.Join(parent, newPrefix+"killed")); err == nil {
		t.Error("what a killed process left is still there")
	}
}

func TestLockWaitsForCtx(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want context.Canceled", err)
	}
	unlock()
	unlock, err = lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestCacheDir(t *testing.T) {
	want := filepath.Join(t.TempDir(), "c")
	t.Setenv(envCache, want)
	if got, err := cacheDir(); err != nil || got != filepath.Join(want, "llama") {
		t.Errorf("%s=%s: %q, %v", envCache, want, got, err)
	}

	t.Setenv(envCache, "")
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	if got, err := cacheDir(); err != nil || got != filepath.Join(home, "tensorcast", "llama") {
		t.Errorf("in the user's cache: %q, %v; want a directory in the home", got, err)
	}

	// There is neither home nor cache, so a private directory among the temporary ones is used.
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	got, err := cacheDir()
	if err != nil || !strings.HasPrefix(got, tmp) {
		t.Fatalf("without a home: %q, %v; want a directory below %s", got, err, tmp)
	}
	// A directory that someone else could write to is refused.
	if err := os.Chmod(filepath.Dir(got), 0o777); err != nil {
		t.Fatal(err)
	}
	if got, err := cacheDir(); err == nil {
		t.Errorf("took %s, which all can write to; want an error", got)
	}
	if err := errors.Join(os.RemoveAll(filepath.Dir(got)), os.Symlink(home, filepath.Dir(got))); err != nil {
		t.Fatal(err)
	}
	if got, err := cacheDir(); err == nil {
		t.Errorf("took %s, behind a symbolic link; want an error", got)
	}
}

// Each architecture has its own libraries. Where there are none, the error says for which there
// are.
func TestPrebuiltFor(t *testing.T) {
	for arch, want := range map[string]string{"amd64": "linux-x64", "arm64": "linux-arm64"} {
		if p := prebuiltFor(arch); p.arch != arch || !strings.HasSuffix(p.name, "/"+want) ||
			!strings.HasSuffix(p.libs, "/"+want) || !strings.HasPrefix(p.integrity, "sha512-") {
			t.Errorf("%s: %+v, want names that end in %s", arch, p, want)
		}
	}
	p := prebuiltFor("riscv64")
	p.arch = "another" // wherever this runs
	if err := p.unpackTo(t.Context(), t.TempDir()); !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "linux/another") {
		t.Errorf("%v, want ErrUnavailable for linux/another", err)
	}
}
