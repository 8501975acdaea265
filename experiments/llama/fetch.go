package llama

// This file fetches the prebuilt llama.cpp: an npm package whose hash is checked before it is unpacked.

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// npmPackage is a package with llama.cpp's libraries.
type npmPackage struct {
	name, version string
	arch          string // the architecture that the libraries are for, as Go names it
	integrity     string // hash of the .tgz, as npm writes it: "sha512-" and base64
	libs          string // path of the libraries in the package
	library       string // the beginning of the name of one of them; libllama. if empty
}

// prebuilts are the packages that there are.
var prebuilts = []npmPackage{
	{
		name:      "@node-llama-cpp/linux-x64",
		version:   Version,
		arch:      "amd64",
		integrity: "sha512-5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg==",
		libs:      "package/bins/linux-x64",
	},
	{
		name:      "@node-llama-cpp/linux-arm64",
		version:   Version,
		arch:      "arm64",
		integrity: "sha512-W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFxexZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ==",
		libs:      "package/bins/linux-arm64",
	},
}

// prebuiltFor returns the package for an architecture, or else the first.
func prebuiltFor(arch string) npmPackage {
	return prebuilts[max(0, slices.IndexFunc(prebuilts, func(p npmPackage) bool { return p.arch == arch }))]
}

// Limits for unpacking; the pinned package is far below.
const (
	maxPackageBytes  = 1 << 30
	maxUnpackedBytes = 4 << 30
)

// unpackTo fetches the package and unpacks its libraries to dir/bin and its licence to dir.
func (p npmPackage) unpackTo(ctx context.Context, dir string) error {
	f, err := p.download(ctx, dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		return err
	}
	if err := p.unpack(f, dir); err != nil {
		return fmt.Errorf("unpack %s@%s: %w", p.name, p.version, err)
	}
	return os.Remove(f.Name())
}

// download fetches the package to dir, checks it and opens it.
func (p npmPackage) download(ctx context.Context, dir string) (_ *os.File, err error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != p.arch {
		return nil, fmt.Errorf("%w: the prebuilt one is for linux/%s, not %s/%s; build llama.cpp and set %s to "+
			"its directory",
			ErrUnavailable, p.arch, runtime.GOOS, runtime.GOARCH, envLlama)
	}
	if err := p.fetch(ctx, dir); err != nil {
		return nil, err
	}
	tgz, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(tgz) != 1 {
		return nil, fmt.Errorf("npm pack %s@%s left %d files, not one", p.name, p.version, len(tgz))
	}
	f, err := os.Open(tgz[0])
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := p.check(f); err != nil {
		return nil, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// fetch downloads the package's .tgz into dir with npm, as it is configured on this machine.
func (p npmPackage) fetch(ctx context.Context, dir string) error {
	// No scripts: nothing of the package runs before its hash is checked.
	cmd := exec.CommandContext(ctx, "npm", "pack", p.name+"@"+p.version, "--pack-destination", dir,
		"--ignore-scripts", "--loglevel=error")
	cmd.WaitDelay = 2 * time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("npm pack %s@%s: %w", p.name, p.version, context.Cause(ctx))
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: npm is not installed (on Debian or Ubuntu: apt-get install npm), or set %s to a "+
			"llama.cpp of yours", ErrUnavailable, envLlama)
	}
	return fmt.Errorf("%w: npm pack %s@%s: %w%s", ErrUnavailable, p.name, p.version, err, npmReason(out))
}

// npmReason extracts the error from npm's output as one line, without the notes about npm's log.
func npmReason(out []byte) string {
	reason := ""
	n := 0
	for line := range bytes.Lines(out) {
		text, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "npm error ")
		if !ok {
			text, ok = strings.CutPrefix(strings.TrimSpace(string(line)), "npm ERR! ") // the prefix before npm 10
		}
		if ok && n < 3 && text != "" && !strings.HasPrefix(text, "A complete log") {
			reason += ": " + text
			n++
		}
	}
	return reason
}

// check compares the package's hash with the expected one.
func (p npmPackage) check(tgz io.Reader) error {
	h := sha512.New()
	n, err := io.Copy(h, io.LimitReader(tgz, maxPackageBytes))
	if err != nil {
		return err
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil)); got != p.integrity {
		return fmt.Errorf("%w: npm pack %s@%s gave %d bytes with %s, want %s", ErrIntegrity, p.name, p.version, n,
			got, p.integrity)
	}
	return nil
}

// unpack extracts the regular files that are expected, by base name. So no name in the archive can
// lead outside dir. Links are not extracted.
func (p npmPackage) unpack(tgz io.Reader, dir string) error {
	z, err := gzip.NewReader(tgz)
	if err != nil {
		return err
	}
	r := tar.NewReader(io.LimitReader(z, maxUnpackedBytes))
	found := false
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		parent, name := path.Split(h.Name)
		switch {
		case h.Typeflag != tar.TypeReg || strings.ContainsAny(name, "\\\x00"):
		case parent == p.libs+"/" && strings.HasSuffix(name, ".so"):
			found = found || strings.HasPrefix(name, cmp.Or(p.library, "libllama."))
			if err := writeFile(filepath.Join(dir, "bin", name), r, 0o755); err != nil {
				return err
			}
		case parent == "package/" && name == "LICENSE":
			if err := writeFile(filepath.Join(dir, name), r, 0o644); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("it has no %s", strings.TrimSuffix(cmp.Or(p.library, "libllama."), "."))
	}
	return nil
}
