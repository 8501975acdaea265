package pagecache

// This file finds the file of an overlay's layer that has the pages.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"tensorcast/internal/mounts"
	"tensorcast/internal/regular"
)

// overlayMagic is what statfs returns for overlayfs (OVERLAYFS_SUPER_MAGIC, include/uapi/linux/magic.h).
const overlayMagic = 0x794c7630

// LookBelow looks for the file of which an overlay has the pages, so that cachestat can be asked about it. cachestat
// also counts pages that are being read, which mincore does not. If the file is on no overlay, or its layers cannot be
// reached from here (those of a container by name only, or in another mount namespace), all stays as it was. The caller
// must call Close.
//
// The layers are in the options of the mount, and what one has at the file's path need not be the file: another layer
// may hide it, and who mounted it may have moved the directory. So the file below must have the same inode number, size
// and time, and its pages must be those that mincore sees.
func (r *Residency) LookBelow() {
	var fs unix.Statfs_t
	if unix.Fstatfs(int(r.file.Fd()), &fs) != nil || fs.Type != overlayMagic {
		return
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", r.file.Fd()))
	if err != nil {
		return
	}
	mounted, err := mounts.Read(mounts.Here)
	if err != nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(int(r.file.Fd()), &st) != nil {
		return
	}
	for i := range mounted {
		for _, candidate := range layerPaths(&mounted[i], path) {
			below, err := regular.Open(candidate)
			if err != nil {
				continue
			}
			if r.hasPagesOf(below, &st) {
				r.below = below
				r.way.Store(wayBelow)
				return
			}
			below.Close()
		}
	}
}

// Close closes what LookBelow has opened.
func (r *Residency) Close() error {
	if r.below == nil {
		return nil
	}
	return r.below.Close()
}

// layerPaths returns where a file may lie in the layers of an overlay, the uppermost first. path is where the file is,
// in this mount namespace or in a container's.
func layerPaths(m *mounts.Mount, path string) (paths []string) {
	if m.Type != "overlay" {
		return nil
	}
	inside := path // the overlay is a container's root
	if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(m.Point, "/")+"/"); ok {
		inside = filepath.Join(m.Root, rest)
	}
	var upper, lower []string
	for _, option := range m.Options {
		switch name, value, _ := strings.Cut(option, "="); name {
		case "upperdir":
			upper = append(upper, value)
		case "lowerdir": // separated by colons, and those without metadata by two
			lower = append(lower, strings.FieldsFunc(value, func(c rune) bool { return c == ':' })...)
		case "lowerdir+": // Linux 6.7: one each
			lower = append(lower, value)
		}
	}
	for _, dir := range append(upper, lower...) {
		if filepath.IsAbs(dir) { // else it is relative to where it was mounted from
			paths = append(paths, filepath.Join(dir, inside))
		}
	}
	return paths
}

// comparedBytes of a file are compared page by page with that of a layer.
const comparedBytes = 16 << 20

// hasPagesOf reports whether the pages of the file are those of another one. The first page is in memory.
func (r *Residency) hasPagesOf(below *os.File, st *unix.Stat_t) bool {
	var other unix.Stat_t
	// overlayfs writes the number of the layer into the upper bits (xino).
	const inodeBits = 1<<32 - 1
	if unix.Fstat(int(below.Fd()), &other) != nil || other.Size != st.Size || other.Mtim != st.Mtim ||
		other.Ino&inodeBits != st.Ino&inodeBits {
		return false
	}
	if _, err := r.file.ReadAt(make([]byte, 1), 0); err != nil {
		return false
	}
	first, err := askCachestat(below, 0, 1)
	if err != nil || first == 0 {
		return false
	}
	seen, err := r.askMincore(0, min(comparedBytes, st.Size))
	if err != nil {
		return false
	}
	there, err := askCachestat(below, 0, min(comparedBytes, st.Size))
	return err == nil && there >= seen // pages that are being read count below only
}
