package cli

// This file reports the version of the build.

import (
	"fmt"
	"runtime/debug"
	"strings"
)

// Version is what --version prints: the release or revision that the command was built from, and the Go version.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	parts := []string{info.Main.Version}
	if info.Main.Version == "" {
		parts[0] = "(devel)"
	}
	if revision := settings["vcs.revision"]; revision != "" {
		text := "revision " + revision
		if t := settings["vcs.time"]; t != "" {
			text += " of " + t
		}
		if settings["vcs.modified"] == "true" {
			text += " with changes"
		}
		parts = append(parts, text)
	}
	return strings.Join(append(parts, fmt.Sprintf("%s %s/%s", info.GoVersion, settings["GOOS"], settings["GOARCH"])), ", ")
}
