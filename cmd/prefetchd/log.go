package main

// This file writes the log on standard error: as text, or with --log json as one JSON object per line.

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"tensorcast/internal/cli"
	"tensorcast/prefetch"
)

// The values of --log.
const (
	logText = "text"
	logJSON = "json"
)

// logger returns a logger for messages of at least a level.
func (o *options) logger(to io.Writer, level slog.Level) *slog.Logger {
	h := &slog.HandlerOptions{Level: level}
	if o.log != logJSON {
		return slog.New(slog.NewTextHandler(to, h))
	}
	log := slog.New(slog.NewJSONHandler(to, h))
	if o.pid != 0 {
		log = log.With("target", o.pid)
	}
	return log
}

// logLevel is the least level of messages that are logged.
func (o *options) logLevel() slog.Level {
	switch {
	case o.verbose:
		return slog.LevelDebug
	case o.auto:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// statusLogger returns the logger for statuses and summaries, which does not depend on --verbose;
// nil if they are printed as text.
func (o *options) statusLogger(to io.Writer) *slog.Logger {
	if o.log != logJSON {
		return nil
	}
	return o.logger(to, slog.LevelInfo)
}

// logResult logs the result with --log json: a summary, or an error other than of the command line.
// The returned error then has only the exit status. Without --log json it returns err. For a
// prefetchd that --auto started, an error is why its target is passed over.
func (o *options) logResult(to io.Writer, s *prefetch.Summary, err error) error {
	log := o.statusLogger(to)
	switch {
	case o.helper && err != nil && log != nil:
		log.Info("not helped", "why", cli.Message(err))
		return &cli.Exit{Code: cli.Failure}
	case o.helper && err != nil:
		return &cli.Exit{Code: cli.Failure, Err: fmt.Errorf("not helped: %w", err)}
	case log == nil:
		return err
	}
	if err == nil {
		if s != nil {
			log.Info("done", "summary", s)
		}
		return nil
	}
	if usage := (*cli.UsageError)(nil); errors.As(err, &usage) {
		return err
	}
	code := cli.Failure
	if exit := (*cli.Exit)(nil); errors.As(err, &exit) {
		code = exit.Code
	}
	log.Error(cli.Message(err))
	return &cli.Exit{Code: code}
}
