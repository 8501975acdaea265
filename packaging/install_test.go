// Package packaging_test checks the scripts that install and pack the commands.
package packaging_test

// This file tests install.sh.

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// commands are the installed commands.
var commands = []string{"ggufmap", "tracer", "analyze", "prefetchd"}

// writeFakes writes fake commands and libraries, and returns their directory. The installation does
// not depend on what they do.
func writeFakes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, c := range commands {
		if err := os.WriteFile(filepath.Join(dir, c), []byte("#!/bin/sh\necho \"$0 $*\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []string{"libtfmbs_device.so", "libggml-tfmbs.so", "libtfmbs_intercept.so"} {
		write(t, filepath.Join(dir, l), "library")
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// describeTree describes each file below dir by its path, type, mode and content.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var data []byte
		if d.Type().IsRegular() {
			if data, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(&all, "%s %v %q\n", strings.TrimPrefix(path, dir), info.Mode(), data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// install runs install.sh with only the system's programs in PATH, so without Go.
func install(args ...string) (string, error) {
	cmd := exec.Command("./install.sh", args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "TMPDIR=" + os.TempDir()}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mustInstall(t *testing.T, args ...string) {
	t.Helper()
	if out, err := install(args...); err != nil || out != "" {
		t.Fatalf("install.sh %q: %v\n%s", args, err, out)
	}
}

// newRoot creates a root directory with files and directories of other programs. Some directories
// are empty.
func newRoot(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "a root")
	write(t, root+"/usr/bin/other", "other")
	write(t, root+"/usr/share/doc/other/README", "other")
	for _, d := range []string{"/usr/share/zsh", "/usr/lib/systemd/system", "/usr/local"} {
		if err := os.MkdirAll(root+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestUninstallLeavesNothing(t *testing.T) {
	bin := writeFakes(t)
	for _, prefix := range []string{"/usr", "/usr/local", "/opt/tensor cast", "", "/"} {
		root := newRoot(t)
		before := describeTree(t, root)
		mustInstall(t, bin, root, prefix)
		for _, c := range commands {
			info, err := os.Stat(filepath.Join(root, prefix, "bin", c))
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("prefix %q: %s: %v, %v; want mode 0755", prefix, c, info, err)
			}
		}
		once := describeTree(t, root)
		mustInstall(t, bin, root, prefix)
		if again := describeTree(t, root); again != once {
			t.Errorf("prefix %q: installed twice:\n%s\nwant as once:\n%s", prefix, again, once)
		}
		mustInstall(t, "--remove", root, prefix)
		if after := describeTree(t, root); after != before {
			t.Errorf("prefix %q: after the removal:\n%s\nwant as before:\n%s", prefix, after, before)
		}
	}
}

// Files of others in our directories stay, and so do these directories.
func TestUninstallLeavesOthers(t *testing.T) {
	root := newRoot(t)
	mustInstall(t, writeFakes(t), root, "/usr/local")
	write(t, root+"/usr/local/share/fish/vendor_completions.d/other.fish", "other")
	write(t, root+"/usr/local/bin/other", "other")
	mustInstall(t, "--remove", root, "/usr/local")
	after := describeTree(t, root+"/usr/local")
	if strings.Count(after, "\n") != 7 || strings.Count(after, "other") != 4 {
		t.Errorf("after the removal:\n%s\nwant 7 entries with the two files of others", after)
	}
}

// The configuration file is where prefetchd looks for it. What somebody has written there is neither replaced nor
// removed; what nobody has changed is replaced by a newer one.
func TestConfigurationStays(t *testing.T) {
	bin := writeFakes(t)
	example, err := os.ReadFile("prefetchd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, prefix := range []string{"/usr", "/usr/local", ""} {
		root := newRoot(t)
		path := root + "/etc/tensorcast/prefetchd.yaml"
		mustInstall(t, bin, root, prefix)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 || read(path) != string(example) {
			t.Errorf("prefix %q: %v, %v; want the example with mode 0644", prefix, info, err)
		}

		// An older installation had another one, which nobody has changed.
		list := filepath.Join(root, prefix, "share/doc/tensorcast/installed")
		sum := fmt.Sprintf("%x", sha256.Sum256(example))
		old := fmt.Sprintf("%x", sha256.Sum256([]byte("old")))
		write(t, list, strings.ReplaceAll(read(list), sum, old))
		write(t, path, "old")
		mustInstall(t, bin, root, prefix)
		if read(path) != string(example) {
			t.Errorf("prefix %q: an old file that nobody has changed was not replaced", prefix)
		}

		write(t, path, "budget: 1GB\n")
		mustInstall(t, bin, root, prefix)
		mustInstall(t, "--remove", root, prefix)
		if read(path) != "budget: 1GB\n" {
			t.Errorf("prefix %q: what somebody has written is lost", prefix)
		}
		mustInstall(t, bin, root, prefix)
		mustInstall(t, "--remove", root, prefix)
		if read(path) != "budget: 1GB\n" {
			t.Errorf("prefix %q: a file that was there before is lost", prefix)
		}
	}
}

// A newer installation removes files that only the older one had. The older one's directories are
// removed with those of the newer one.
func TestInstallOverAnother(t *testing.T) {
	root, bin := newRoot(t), writeFakes(t)
	before := describeTree(t, root)
	mustInstall(t, bin, root, "/usr")
	for _, l := range []string{"libtfmbs_device.so", "libggml-tfmbs.so", "libtfmbs_intercept.so"} {
		if err := os.Remove(filepath.Join(bin, l)); err != nil {
			t.Fatal(err)
		}
	}
	mustInstall(t, bin, root, "/usr")
	now := describeTree(t, root)
	if strings.Contains(now, "/usr/lib/libtfmbs_device.so ") || strings.Contains(now, "tfmbs_host.h ") {
		t.Errorf("libraries of the older installation are left:\n%s", now)
	}
	mustInstall(t, "--remove", root, "/usr")
	if after := describeTree(t, root); after != before {
		t.Errorf("the tree is\n%s\nwant as before:\n%s", after, before)
	}
}

func TestInstallFails(t *testing.T) {
	root, bin := newRoot(t), writeFakes(t)
	before := describeTree(t, root)
	out, err := install("--remove", root, "/usr")
	if err == nil || !strings.Contains(out, "nothing is installed there") {
		t.Errorf("removal without an installation: error %v, want one that says so\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(bin, "tracer")); err != nil {
		t.Fatal(err)
	}
	if out, err = install(bin, root, "/usr"); err == nil || !strings.Contains(out, "run make build first") {
		t.Errorf("a command is missing: error %v, want the advice to run make build\n%s", err, out)
	}
	if after := describeTree(t, root); after != before {
		t.Errorf("the tree is\n%s\nwant as before:\n%s", after, before)
	}

	// One of the commands fails in the middle of the installation. The files installed until then
	// can be removed.
	if err := os.WriteFile(filepath.Join(bin, "tracer"), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err = install(bin, root, "/usr"); err == nil {
		t.Errorf("the installation of a command that fails gave no error\n%s", out)
	}
	if half := describeTree(t, root); half == before {
		t.Error("nothing was installed before the failure, so this test proves nothing")
	}
	mustInstall(t, "--remove", root, "/usr")
	if after := describeTree(t, root); after != before {
		t.Errorf("after half an installation and its removal:\n%s\nwant as before:\n%s", after, before)
	}
}

// The documents are installed, and what they link to as well, but for what is of use in a checkout only.
func TestDocuments(t *testing.T) {
	root := newRoot(t)
	mustInstall(t, writeFakes(t), root, "/usr")
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	base, links := filepath.Join(root, "usr/share/doc/tensorcast"), 0
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to := filepath.Join(filepath.Dir(path), m[1])
			switch filepath.Base(to) {
			case "ARCHITECTURE.md", "CONTRIBUTING.md", "tfmbs_host.h":
				continue
			}
			links++
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which is not installed", strings.TrimPrefix(path, base+"/"), m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"tutorial", "prefetchd", "status", "troubleshooting", "containers", "measurements/README",
	} {
		if _, err := os.Stat(filepath.Join(base, "docs", name+".md")); err != nil {
			t.Error(err)
		}
	}
	if links < 30 {
		t.Errorf("%d links were found, want at least 30", links)
	}
}
