package gguf

// This file has the words for what is wrong with a file. All tools print them as they are, so that a
// file is told of in the same way everywhere.

import (
	"errors"
	"fmt"
)

// Errors of Parse wrap one of these, or the reader's. Each error is one line that says what was
// found, where, and what to do.
var (
	// ErrNotGGUF says that a file does not begin with GGUF's magic number.
	ErrNotGGUF = errors.New("not a GGUF file")

	// ErrTruncated says that a file is shorter than its metadata declare: it was cut off, or its
	// counts are wrong.
	ErrTruncated = errors.New("truncated")

	// ErrDamaged says that a file contradicts itself, or the format.
	ErrDamaged = errors.New("damaged")

	// ErrUnsupported says that a file may be right, but goes beyond what this package reads.
	ErrUnsupported = errors.New("not supported")
)

// advice is what to do about a file with an error of each kind.
var advice = map[error]string{
	ErrTruncated:   "is the download whole?", // most short files are unfinished downloads
	ErrDamaged:     "get the file again, or ask whoever wrote it",
	ErrUnsupported: "a newer version of this program may read it",
}

// IsParseError reports whether an error says what is wrong with a file that begins as GGUF files do.
func IsParseError(err error) bool {
	return errors.Is(err, ErrTruncated) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrUnsupported)
}

// parseError makes the error of a kind, with what was found and where.
func parseError(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: %w; %s", kind, fmt.Errorf(format, args...), advice[kind])
}

func cutOff(format string, args ...any) error  { return parseError(ErrTruncated, format, args...) }
func damaged(format string, args ...any) error { return parseError(ErrDamaged, format, args...) }

// errorf is damaged with the position.
func (p *parser) errorf(format string, args ...any) error {
	return damaged("%s: %w", p.position(), fmt.Errorf(format, args...))
}

// beyond is the error of what this package does not read, with the position.
func (p *parser) beyond(format string, args ...any) error {
	return parseError(ErrUnsupported, "%s: %w", p.position(), fmt.Errorf(format, args...))
}
