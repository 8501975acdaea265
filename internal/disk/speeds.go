package disk

// This file keeps what was measured of disks.

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
)

// MaxAge is how long a measurement is valid: disks get fuller and older, and virtual ones get other neighbours.
const MaxAge = 7 * 24 * time.Hour

// Speeds is a file with what was measured of disks: a JSON object, in which each disk's identity has
//
//	bytes_per_second    what it reads with many requests at a time
//	measured            when (RFC 3339)
//
// It may be deleted at any time: then disks are measured again. Two processes that write it at once lose one of the
// measurements.
type Speeds string

// FileName is the name of the file in the user's cache directory ($XDG_CACHE_HOME, or ~/.cache).
const FileName = "tensorcast/disk-speeds.json"

// UserSpeeds is the user's file. It is "", which keeps nothing, if there is no directory for it.
func UserSpeeds() Speeds {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return Speeds(filepath.Join(dir, FileName))
}

// measurement is a disk's entry.
type measurement struct {
	BytesPerSecond float64   `json:"bytes_per_second"`
	Measured       time.Time `json:"measured"`
}

// Get returns what was measured of a disk, in bytes per second, 0 if that is not known.
func (s Speeds) Get(d Disk) float64 { return s.read()[d.Identity].BytesPerSecond }

// Put keeps what was measured of a disk. Of a disk without an identity nothing is kept.
func (s Speeds) Put(d Disk, bytesPerSecond float64) error {
	if s == "" || d.Identity == "" {
		return nil
	}
	all := s.read()
	all[d.Identity] = measurement{bytesPerSecond, time.Now().UTC()}
	if err := os.MkdirAll(filepath.Dir(string(s)), 0o755); err != nil {
		return fmt.Errorf("keep what was measured of the disk: %w", err)
	}
	return outfile.Write(string(s), func(w io.Writer) error { return json.NewEncoder(w).Encode(all) })
}

// read returns the valid measurements by identity. Entries that cannot be read are left out, so that their disks are
// measured again.
func (s Speeds) read() map[string]measurement {
	all := map[string]measurement{}
	if s == "" {
		return all
	}
	const maxBytes = 1 << 20
	text, err := regular.Read(string(s), maxBytes)
	if err != nil || json.Unmarshal(text, &all) != nil || all == nil {
		return map[string]measurement{}
	}
	for identity, m := range all {
		age := time.Since(m.Measured)
		if identity == "" || age < 0 || age > MaxAge || !(m.BytesPerSecond > 0) || math.IsInf(m.BytesPerSecond, 0) {
			delete(all, identity)
		}
	}
	return all
}
