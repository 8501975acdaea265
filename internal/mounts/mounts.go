// Package mounts reads what is mounted (/proc/PID/mountinfo). Unlike other readers it keeps options that an overlay has
// several times (lowerdir+), undoes the kernel's escapes, and skips a line that it does not understand.
package mounts

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// Mount is a line of mountinfo, as proc_pid_mountinfo(5) describes it.
type Mount struct {
	Device  string // major:minor, as the kernel has it
	Root    string // the directory of the file system that is seen at Point
	Point   string
	Type    string
	Source  string
	Options []string // of the file system: "rw", "lowerdir=/a:/b"
}

// Here is the file with the mounts of this process's namespace.
const Here = "/proc/self/mountinfo"

// maxLine bounds a line: an overlay may have 500 layers, each of which it names.
const maxLine = 1 << 20

// Read returns the mounts that a file lists, in its order.
func Read(path string) (all []Mount, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read what is mounted: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if m, ok := parse(lines.Text()); ok {
			all = append(all, m)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read what is mounted: %w", err)
	}
	return all, nil
}

func parse(line string) (m Mount, ok bool) {
	before, after, _ := strings.Cut(line, " - ")
	place, what := strings.Fields(before), strings.Fields(after)
	if len(place) < 6 || len(what) < 3 {
		return m, false
	}
	m = Mount{
		Device: place[2], Root: unescape(place[3]), Point: unescape(place[4]),
		Type: what[0], Source: unescape(what[1]), Options: strings.Split(what[2], ","),
	}
	for i := range m.Options {
		m.Options[i] = unescape(m.Options[i])
	}
	return m, true
}

// unescape undoes how the kernel writes spaces, tabs, line ends, backslashes and commas: as three octal digits.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\054`, ",").Replace(text)
}
