// Package packaging_test checks the scripts that install and pack the commands.
package packaging_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// commands are those that are installed.
var commands = []string{"ggufmap", "tracer", "analyze", "prefetchd"}

// fakes writes programs that stand for the commands, and returns their directory: what is installed does not depend on what they do.
func fakes(t *testing.T) string {
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

// tree describes each file below dir: path, kind, mode, content.
func tree(t *testing.T, dir string) string {
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

// install runs install.sh where there are no programs but the system's: no Go, whoever runs it.
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

// machine is a root directory with files and directories of others, some of them empty.
func machine(t *testing.T) string {
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
	bin := fakes(t)
	for _, prefix := range []string{"/usr", "/usr/local", "/opt/tensor cast", "", "/"} {
		root := machine(t)
		before := tree(t, root)
		mustInstall(t, bin, root, prefix)
		for _, c := range commands {
			if info, err := os.Stat(filepath.Join(root, prefix, "bin", c)); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("prefix %q: %s: %v, %v", prefix, c, info, err)
			}
		}
		once := tree(t, root)
		mustInstall(t, bin, root, prefix)
		if again := tree(t, root); again != once {
			t.Errorf("prefix %q: installed twice:\n%s\nonce:\n%s", prefix, again, once)
		}
		mustInstall(t, "--remove", root, prefix)
		if after := tree(t, root); after != before {
			t.Errorf("prefix %q: before:\n%s\nafter:\n%s", prefix, before, after)
		}
	}
}

// What others put into our directories stays, and so do these.
func TestUninstallLeavesOthers(t *testing.T) {
	root := machine(t)
	mustInstall(t, fakes(t), root, "/usr/local")
	write(t, root+"/usr/local/share/fish/vendor_completions.d/other.fish", "other")
	write(t, root+"/usr/local/bin/other", "other")
	mustInstall(t, "--remove", root, "/usr/local")
	if after := tree(t, root+"/usr/local"); strings.Count(after, "\n") != 7 || strings.Count(after, "other") != 4 {
		t.Errorf("left:\n%s", after)
	}
}

// A newer installation takes away what only the older one had, and its directories are removed with those of the newer one.
func TestInstallOverAnother(t *testing.T) {
	root, bin := machine(t), fakes(t)
	before := tree(t, root)
	mustInstall(t, bin, root, "/usr")
	for _, l := range []string{"libtfmbs_device.so", "libggml-tfmbs.so", "libtfmbs_intercept.so"} {
		if err := os.Remove(filepath.Join(bin, l)); err != nil {
			t.Fatal(err)
		}
	}
	mustInstall(t, bin, root, "/usr")
	if now := tree(t, root); strings.Contains(now, "/usr/lib/libtfmbs_device.so ") || strings.Contains(now, "tfmbs_host.h ") {
		t.Errorf("the older one's libraries are left:\n%s", now)
	}
	mustInstall(t, "--remove", root, "/usr")
	if after := tree(t, root); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func TestInstallFails(t *testing.T) {
	root, bin := machine(t), fakes(t)
	before := tree(t, root)
	out, err := install("--remove", root, "/usr")
	if err == nil || !strings.Contains(out, "nothing is installed there") {
		t.Errorf("uninstall without an installation: %v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(bin, "tracer")); err != nil {
		t.Fatal(err)
	}
	if out, err = install(bin, root, "/usr"); err == nil || !strings.Contains(out, "run make build first") {
		t.Errorf("a command is missing: %v\n%s", err, out)
	}
	if after := tree(t, root); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}

	// A command that fails when half is done: what is there can be removed.
	if err := os.WriteFile(filepath.Join(bin, "tracer"), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err = install(bin, root, "/usr"); err == nil {
		t.Errorf("installed a command that fails\n%s", out)
	}
	if half := tree(t, root); half == before {
		t.Error("nothing was installed before the failure: the test shows nothing")
	}
	mustInstall(t, "--remove", root, "/usr")
	if after := tree(t, root); after != before {
		t.Errorf("after half an installation: before:\n%s\nafter:\n%s", before, after)
	}
}
