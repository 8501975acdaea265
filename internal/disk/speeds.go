package disk

// This file keeps what was measured of disks.

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
	"tensorcast/internal/stats"
)

// MaxAge is how long a measurement is kept: disks get fuller and older, and virtual ones get other neighbours.
const MaxAge = 7 * 24 * time.Hour

// FreshFor is how long a measurement is as good as a new one. Virtual disks change within the hour.
const FreshFor = 10 * time.Minute

// Speeds is a file with what was measured of disks: a JSON object, in which each disk's identity has
//
//	bytes_per_second          what it reads with many requests at a time
//	least_bytes_per_second    the least and the most of the moments of which that is the median,
//	most_bytes_per_second     if there were several
//	measured                  when (RFC 3339)
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

// Speed is what was measured of a disk. The zero value says that it was not.
type Speed struct {
	BytesPerSecond float64   `json:"bytes_per_second"`
	Least          float64   `json:"least_bytes_per_second,omitempty"`
	Most           float64   `json:"most_bytes_per_second,omitempty"`
	Measured       time.Time `json:"measured"`
}

// SpeedOf is the speed of moments that were measured now, each in bytes per second: their median, and their range. It
// is the zero Speed without moments.
func SpeedOf(moments ...float64) Speed {
	if len(moments) == 0 {
		return Speed{}
	}
	return Speed{
		BytesPerSecond: stats.Median(moments), Least: slices.Min(moments), Most: slices.Max(moments),
		Measured: time.Now().UTC().Truncate(time.Second),
	}
}

// AtLeast is s of a disk that was seen to read so many bytes per second.
func (s Speed) AtLeast(bytesPerSecond float64) Speed {
	for _, v := range []*float64{&s.BytesPerSecond, &s.Least, &s.Most} {
		*v = max(*v, bytesPerSecond)
	}
	return s
}

// Fresh reports whether s is as good as a new measurement.
func (s Speed) Fresh() bool { return s.BytesPerSecond > 0 && time.Since(s.Measured) < FreshFor }

// Get returns what was measured of a disk, the zero Speed if that is not known.
func (s Speeds) Get(d Disk) Speed { return s.read()[d.Identity] }

// Put keeps what was measured of a disk. Of a disk without an identity nothing is kept.
func (s Speeds) Put(d Disk, speed Speed) error {
	if s == "" || d.Identity == "" {
		return nil
	}
	all := s.read()
	all[d.Identity] = speed
	if err := os.MkdirAll(filepath.Dir(string(s)), 0o755); err != nil {
		return fmt.Errorf("keep what was measured of the disk: %w", err)
	}
	return outfile.Write(string(s), func(w io.Writer) error { return json.NewEncoder(w).Encode(all) })
}

// read returns the valid measurements by identity. Entries that cannot be read are left out, so that their disks are
// measured again.
func (s Speeds) read() map[string]Speed {
	all := map[string]Speed{}
	if s == "" {
		return all
	}
	const maxBytes = 1 << 20
	text, err := regular.Read(string(s), maxBytes)
	if err != nil || json.Unmarshal(text, &all) != nil || all == nil {
		return map[string]Speed{}
	}
	for identity, m := range all {
		age := time.Since(m.Measured)
		if identity == "" || age < 0 || age > MaxAge || !(m.BytesPerSecond > 0) || math.IsInf(m.BytesPerSecond, 0) {
			delete(all, identity)
			continue
		}
		if !(m.Least > 0 && m.Least <= m.BytesPerSecond && m.Most >= m.BytesPerSecond) || math.IsInf(m.Most, 0) {
			m.Least, m.Most = m.BytesPerSecond, m.BytesPerSecond // an older version wrote none
			all[identity] = m
		}
	}
	return all
}
