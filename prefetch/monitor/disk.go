package monitor

// This file says in one line what matters most while a target is helped, for a terminal whose line is written anew
// every second.

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/prometheus/procfs"

	"tensorcast/prefetch"
)

// diskTime is the least time over which a rate is measured.
const diskTime = time.Second

// Disk measures how many bytes per second a prefetchd has had read from disk. The zero value is ready to use. It may be
// used concurrently, for one prefetchd after the other.
type Disk struct {
	mu   sync.Mutex
	pid  int // of the prefetchd
	at   time.Time
	read int64   // bytes, then
	rate float64 // bytes per second before that; negative: not known
}

// Read takes the latest report, and returns bytes per second over the last second or more; a negative number if that is
// not known. Of this process's own report it looks how much was read.
func (d *Disk) Read(r *Report, now time.Time) float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pid == r.PID && now.Sub(d.at) < diskTime {
		return d.rate
	}
	read := r.OwnRead
	if r.PID == os.Getpid() {
		read = readBytes(r.PID)
	}
	rate := -1.0
	if d.pid == r.PID && d.read >= 0 && read >= d.read {
		rate = float64(read-d.read) / now.Sub(d.at).Seconds()
	}
	d.pid, d.at, d.read, d.rate = r.PID, now, read, rate
	return rate
}

// readBytes is how many bytes a process has had read from disk (read_bytes of /proc/PID/io); -1 if that is not known.
func readBytes(pid int) int64 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return -1
	}
	io, err := p.IO()
	if err != nil {
		return -1
	}
	return int64(io.ReadBytes)
}

// Brief says in one line what a prefetchd does. While it helps that is the speed, the speed before, what is kept, and
// what is read from disk for that in bytes per second, unless that is negative. Otherwise it is as Line.
func (r *Report) Brief(now time.Time, disk float64) string {
	s := r.Status
	isHelping := s.Activity == prefetch.Helping || s.Activity == prefetch.Giving
	if !isHelping || s.LoopPhase == prefetch.Load || !r.IdleSince.IsZero() || s.Speed() == "" {
		return r.Line(now)
	}
	line := fmt.Sprintf("%s; kept %s of %s", s.Speed(), bytesOf(s.Held+s.Experts), bytesOf(max(s.Needs, s.PerToken)))
	if disk >= 0 {
		line += fmt.Sprintf("; disk %s/s", bytesOf(int64(disk)))
	}
	if s.Activity == prefetch.Giving {
		line += "; memory is short: " + s.Why
	}
	return line
}

func bytesOf(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
