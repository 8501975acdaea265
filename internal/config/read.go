package config

// This file opens a configuration file, and checks who can have written it.

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"tensorcast/internal/regular"
)

// maxBytes bounds a file. Nobody writes that much by hand.
const maxBytes = 64 << 10

// Read reads the settings in a file, as Parse does. The file must be a regular one that belongs to root or to who runs
// this program, and that nobody else can write to. Otherwise the error has a [*Problem] that says so, beside those of
// the content. If there is no such file, the error wraps [fs.ErrNotExist].
func Read(path string, keys Keys) ([]Setting, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(data) > maxBytes {
		return nil, &Problem{path, 0, fmt.Sprintf("more than %d KiB: that is no configuration", maxBytes>>10)}
	}
	settings, err := Parse(path, data, keys)
	if unsafe := checkWriters(path, info, os.Geteuid()); unsafe != nil || err != nil {
		return nil, errors.Join(unsafe, err)
	}
	return settings, nil
}

// checkWriters returns a *Problem if others than root and the user uid can write to a file.
func checkWriters(path string, info fs.FileInfo, uid int) error {
	refuse := func(format string, args ...any) error { return &Problem{path, 0, fmt.Sprintf(format, args...)} }
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return refuse("it is not known whom it belongs to")
	}
	const others = 0o022
	switch owner := int(st.Uid); {
	case owner != 0 && owner != uid:
		return refuse("it belongs to user %d, who could change what this program does: chown %d it, or use another file",
			owner, uid)
	case info.Mode().Perm()&others != 0:
		return refuse("others can write to it (mode %04o): chmod go-w it", info.Mode().Perm())
	}
	return nil
}
