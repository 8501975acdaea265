package disk

// This file tests what is said of disks, on a machine that is written for it, and what is kept of them.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const anonymous = 39 // 0:39, the number of what is mounted without a disk's

// writeSystem writes a machine with a partition, a loop device over a file on that partition's disk, and one mount.
func writeSystem(t *testing.T, backing, mount string) System {
	t.Helper()
	root := t.TempDir()
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"devices/nvme0n1/wwid":                "eui.0025385",
		"devices/nvme0n1/size":                "2000",
		"devices/nvme0n1/nvme0n1p2/partition": "2",
		"devices/nvme0n1/nvme0n1p2/size":      "1000",
		"devices/loop3/loop/backing_file":     backing,
		"devices/dm-0/dm/uuid":                "LVM-a",
		"devices/dm-0/size":                   "8",
		"devices/vdb/size":                    "8",
		"mountinfo":                           mount,
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	for number, at := range map[string]string{
		"259:2": "nvme0n1/nvme0n1p2", "7:3": "loop3", "252:0": "dm-0", "254:16": "vdb",
		// What this test writes lies on the disk of the machine that is written.
		fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)): "nvme0n1",
	} {
		if err := os.Symlink("../../devices/"+at, filepath.Join(root, "dev/block", number)); err != nil {
			t.Fatal(err)
		}
	}
	return System{root, filepath.Join(root, "mountinfo")}
}

// A disk has the same identity by whatever number, partition or mount it is reached. What has none is not taken for
// another one.
func TestFind(t *testing.T) {
	if unix.Stat("/dev/null", new(unix.Stat_t)) != nil {
		t.Skip("no /dev")
	}
	backing := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(backing, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const nvme = "wwid eui.0025385, 1024000 bytes"
	mount := func(kind, source string) string {
		return "29 1 0:39 / /mnt rw shared:1 - " + kind + " " + source + " rw"
	}
	for _, tt := range []struct {
		name   string
		number uint64
		mount  string
		want   Disk
		fails  bool
	}{
		{"a partition", 259<<20 | 2, "", Disk{Identity: nvme}, false},
		{"the device mapper", 252 << 20, "", Disk{Identity: "dm LVM-a, 4096 bytes"}, false},
		{"a disk without a name of its own", 254<<20 | 16, "", Disk{}, false},
		{"no such disk", 1 << 20, "", Disk{}, true},
		{"tmpfs", anonymous, mount("tmpfs", "tmpfs"), Disk{InMemory: true}, false},
		{"NFS", anonymous, mount("nfs4", `server:/our\040models`), Disk{Identity: "nfs4 server:/our models"}, false},
		{"FUSE", anonymous, mount("fuse.sshfs", "me@host:"), Disk{Identity: "fuse.sshfs me@host:"}, false},
		{"an overlay", anonymous, mount("overlay", "overlay"), Disk{}, false},
		{"a mount of something without a name", anonymous, mount("virtiofs", "none"), Disk{}, false},
		{"a file system whose disk is gone", anonymous, mount("btrfs", "/dev/no/such"), Disk{}, true},
		{"another mount", anonymous + 1, mount("tmpfs", "tmpfs"), Disk{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := writeSystem(t, backing, tt.mount).Find(tt.number)
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("%+v, %v; want %+v, an error: %v", got, err, tt.want, tt.fails)
			}
		})
	}
	var st unix.Stat_t
	if err := unix.Stat(backing, &st); err != nil {
		t.Fatal(err)
	}
	if unix.Major(st.Dev) == 0 {
		t.Skip("temporary files lie on no disk")
	}
	got, err := writeSystem(t, backing, "").Find(7<<20 | 3)
	if want := (Disk{Identity: "loop on " + nvme}); got != want || err != nil {
		t.Errorf("a loop device: %+v, %v; want %+v", got, err, want)
	}
}

// What was put is got of the same disk only, for a while. A file that is damaged holds nothing.
func TestSpeeds(t *testing.T) {
	s := Speeds(filepath.Join(t.TempDir(), "cache", "speeds.json"))
	a, b := Disk{Identity: "serial a, 1 bytes"}, Disk{Identity: "serial b, 1 bytes"}
	for disk, speed := range map[Disk]float64{a: 1e9, b: 2e9, {}: 3e9} {
		if err := s.Put(disk, SpeedOf(speed)); err != nil {
			t.Fatal(err)
		}
	}
	for disk, want := range map[Disk]float64{a: 1e9, b: 2e9, {}: 0, {Identity: "c"}: 0} {
		if got := s.Get(disk); got.BytesPerSecond != want || got.Fresh() != (want > 0) {
			t.Errorf("%+v: %+v, want %g", disk, got, want)
		}
	}
	at := func(t time.Time) string {
		return strings.ReplaceAll(`{"serial b, 1 bytes":{"bytes_per_second":7,"measured":"T"}}`, "T", t.Format(time.RFC3339))
	}
	for text, want := range map[string]float64{
		at(time.Now().Add(-time.Minute)): 7, at(time.Now().Add(-2 * MaxAge)): 0, at(time.Now().Add(time.Hour)): 0,
		"": 0, "null": 0, "[": 0, `{"serial b, 1 bytes": {"bytes_per_second": -1}}`: 0,
	} {
		if err := os.WriteFile(string(s), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := s.Get(b); got.BytesPerSecond != want || got.Least != want || got.Most != want {
			t.Errorf("%q: %+v, want %g", text, got, want)
		}
	}
	if none := Speeds(""); none.Put(a, SpeedOf(1)) != nil || none.Get(a) != (Speed{}) {
		t.Error("without a file something was kept")
	}
}

// A speed is the median of moments, with their range. It is fresh for some minutes. A disk that was seen to be faster
// is as fast as that.
func TestSpeedOf(t *testing.T) {
	s := SpeedOf(3e9, 1e9, 2e9)
	if s.BytesPerSecond != 2e9 || s.Least != 1e9 || s.Most != 3e9 || !s.Fresh() {
		t.Errorf("%+v, want 2e9, from 1e9 to 3e9, and fresh", s)
	}
	if got := s.AtLeast(2.5e9); got.BytesPerSecond != 2.5e9 || got.Least != 2.5e9 || got.Most != 3e9 {
		t.Errorf("%+v, want 2.5e9, to 3e9", got)
	}
	if s.Measured = time.Now().Add(-2 * FreshFor); s.Fresh() {
		t.Error("an old measurement is fresh, want that it is not")
	}
	if got := SpeedOf(); got != (Speed{}) || got.Fresh() {
		t.Errorf("of no moment %+v, want none", got)
	}
}
