package testenv

// This file mounts file systems for tests: those on which people keep models.

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// FileSystems are the names of the file systems that Mount knows.
var FileSystems = []string{"ext4", "xfs", "btrfs", "tmpfs", "overlay", "bindfs"}

// Mount mounts a file system of a kind and puts copies of files on it. It returns the directory in which they are. The
// file system is gone at the end of the test. The test is skipped, with the reason, where it cannot be mounted. It
// needs root.
//
//   - ext4, xfs, and btrfs, which compresses, lie in a file behind a loop device.
//   - overlay has its files on the lowest layer, an ext4, as an image of a container has, and cannot be written.
//   - bindfs shows a directory of an ext4 through a process (FUSE); "bindfs:OPTIONS" has options of mount.
//     "bindfs:user" is mounted by the user 65534, and nobody else may look at it, not even root.
func Mount(t testing.TB, name string, files ...string) (dir string) {
	t.Helper()
	NeedRoot(t)
	dir = filepath.Join(t.TempDir(), name)
	makeDir(t, dir)
	switch name, options, _ := strings.Cut(name, ":"); name {
	case "ext4":
		mountImage(t, dir, files, "loop", "mkfs.ext4", "-q", "-F")
	case "xfs":
		mountImage(t, dir, files, "loop", "mkfs.xfs", "-q")
	case "btrfs":
		mountImage(t, dir, files, "loop,compress-force=zstd", "mkfs.btrfs", "-q")
	case "tmpfs":
		mount(t, dir, "-t", "tmpfs", "-o", "mode=755", "tmpfs")
		copyFiles(t, dir, files)
	case "overlay":
		lower, empty := Mount(t, "ext4", files...), t.TempDir()
		mount(t, dir, "-t", "overlay", "-o", "lowerdir="+empty+":"+lower, "overlay")
	case "bindfs":
		needProgram(t, "bindfs")
		lower := Mount(t, "ext4", files...)
		args := []string{"bindfs", "--no-allow-other", lower, dir}
		switch options {
		case "":
		case "user":
			args = append([]string{"setpriv", "--ruid", "65534", "--euid", "0", "--rgid", "65534", "--egid", "0",
				"--clear-groups"}, args...)
		default:
			args = append(args, "-o", options)
		}
		tryToMount(t, dir, exec.Command(args[0], args[1:]...))
	default:
		t.Fatalf("no file system %q", name)
	}
	return dir
}

// imageBytes is the size of a file system besides its files. xfs wants 300 MB at least. The image has holes.
const imageBytes = 512 << 20

// mountImage makes a file system in a file, and mounts it.
func mountImage(t testing.TB, dir string, files []string, options string, makeIt ...string) {
	t.Helper()
	needProgram(t, makeIt[0])
	size := int64(imageBytes)
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(makeIt[0], append(makeIt[1:], image)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", makeIt[0], err, out)
	}
	mount(t, dir, "-o", options, image)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	copyFiles(t, dir, files)
}

// mount runs mount(8) with arguments before the directory.
func mount(t testing.TB, dir string, args ...string) {
	t.Helper()
	tryToMount(t, dir, exec.Command("mount", append(args, dir)...))
}

// tryToMount mounts by a command, and unmounts at the end of the test.
func tryToMount(t testing.TB, dir string, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("this machine does not mount it: %v: %v: %s", cmd.Args, err, out)
	}
	t.Cleanup(func() {
		// A process that is being killed may still use it.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// needProgram skips the test where a program is missing.
func needProgram(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is missing (a Debian package has it)", name)
	}
}

func makeDir(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// copyFiles copies files into a directory, and waits until the disk has them.
func copyFiles(t testing.TB, dir string, files []string) {
	t.Helper()
	for _, f := range files {
		if err := copyFile(f, filepath.Join(dir, filepath.Base(f))); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Sync()
}
