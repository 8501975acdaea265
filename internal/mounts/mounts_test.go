package mounts

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// This file tests the reader of what is mounted.

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mountinfo")
	const text = `22 28 0:21 / /proc rw,relatime shared:5 - proc proc rw
62 27 0:42 /a /mnt/our\040models rw - overlay overlay rw,lowerdir+=/l\0541,lowerdir+=/l2
what is this
63 27 0:43 / /n rw,relatime master:1 shared:7 - nfs4 server:/m\011m rw
`
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	want := []Mount{
		{"0:21", "/", "/proc", "proc", "proc", []string{"rw"}},
		{"0:42", "/a", "/mnt/our models", "overlay", "overlay", []string{"rw", "lowerdir+=/l,1", "lowerdir+=/l2"}},
		{"0:43", "/", "/n", "nfs4", "server:/m\tm", []string{"rw"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if here, err := Read(Here); err != nil || len(here) == 0 {
		t.Errorf("here: %d mounts, %v; want some", len(here), err)
	}
	if _, err := Read(path + "x"); err == nil {
		t.Error("no error for a file that is not there")
	}
}
