package cmd_test

// This file checks that each tool, subcommand and flag in the documents exists.

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// splitWords splits a command line as a shell does, as far as documents need it. A quoted text is
// one word. A comment ends the line.
func splitWords(line string) (all []string) {
	var word strings.Builder
	quote, begun := rune(0), false
	flush := func() {
		if begun {
			all = append(all, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == '#' && !begun:
			return all
		case r == ' ':
			flush()
		case strings.ContainsRune("|;&>()`", r):
			flush()
			all = append(all, string(r))
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	flush()
	return all
}

// helpTexts are the outputs of --help, by the words of the command.
type helpTexts map[string]string

// of returns the output of a command's --help.
func (h helpTexts) of(t *testing.T, command []string) string {
	t.Helper()
	key := strings.Join(command, " ")
	if text, ok := h[key]; ok {
		return text
	}
	args := append(command[1:len(command):len(command)], "--help")
	out, err := exec.Command(bin[command[0]], args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v: %s", key, err, out)
	}
	h[key] = string(out)
	return h[key]
}

var (
	flagWord = regexp.MustCompile(`^(--?[a-z][a-z0-9-]*)(=.*)?$`)
	codeLine = regexp.MustCompile(`(?m)^    +\$? ?(.*)$`)
	codeSpan = regexp.MustCompile("`([^`]+)`")
)

// check checks the commands of a line, and those within its quoted words. It returns their number.
func (h helpTexts) check(t *testing.T, where, line string) (n int) {
	t.Helper()
	all := splitWords(line)
	for i := 0; i < len(all); i++ {
		if strings.Contains(all[i], " ") {
			n += h.check(t, where, all[i])
			continue
		}
		name := all[i]
		if at := strings.LastIndexByte(name, '='); at >= 0 { // lab's --variant name=command
			name = name[at+1:]
		}
		tool := path.Base(name)
		if bin[tool] == "" || strings.HasPrefix(name, "./cmd/") ||
			i+1 < len(all) && (all[i+1] == "=" || all[i+1] == "(") ||
			i > 0 && (all[i-1] == "-name" || all[i-1] == "go") {
			continue
		}
		if !strings.Contains(name, "/") && i > 0 && !strings.ContainsAny(all[i-1], "|;&(`") && all[i-1] != "sudo" {
			continue // an argument and not a command
		}
		command := []string{tool}
		n++
		for i++; i < len(all); i++ {
			w := all[i]
			if w == "--" || strings.ContainsAny(w, "|;&>`") && len(w) == 1 {
				break
			}
			if strings.Contains(w, " ") {
				n += h.check(t, where, w)
				continue
			}
			help := h.of(t, command)
			if regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(w) + `  +\S`).MatchString(help) {
				command = append(command, w)
				continue
			}
			flag := flagWord.FindStringSubmatch(w)
			if flag == nil || flag[1] == "-" {
				continue
			}
			pattern := regexp.MustCompile(`(?m)(^|[ ,])` + regexp.QuoteMeta(flag[1]) + `([ ,=\[\n]|$)`)
			if !pattern.MatchString(help) {
				t.Errorf("%s: %s has no %s: %s", where, strings.Join(command, " "), flag[1], line)
			}
		}
	}
	return n
}

// walk calls visit for a command and all below it, with the output of --help.
func (h helpTexts) walk(t *testing.T, command []string, visit func(command []string, help string)) {
	t.Helper()
	help := h.of(t, command)
	visit(command, help)
	_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+) `).FindAllStringSubmatch(list, -1) {
		if m[1] != "help" && m[1] != "completion" {
			h.walk(t, append(command[:len(command):len(command)], m[1]), visit)
		}
	}
}

// checkExamples checks the commands in the examples of all helps.
func checkExamples(t *testing.T, h helpTexts) {
	t.Helper()
	n := 0
	for tool := range bin {
		h.walk(t, []string{tool}, func(command []string, help string) {
			_, examples, _ := strings.Cut(help, "\nExamples:\n")
			examples, _, _ = strings.Cut(examples, "\n\n")
			for line := range strings.Lines(examples) {
				where := strings.Join(command, " ") + " --help"
				n += h.check(t, where, strings.TrimSpace(line))
				if waitsInChat(line) {
					t.Errorf("%s: llama-cli waits in its chat without -st: %s", where, line)
				}
			}
		})
	}
	if n < 30 {
		t.Errorf("%d commands were found in the examples of all helps, want at least 30", n)
	}
}

// waitsInChat says whether a command line starts a llama-cli that waits in its chat after the first answer.
func waitsInChat(line string) bool {
	return strings.Contains(line, "llama-cli -m") && strings.Contains(line, " -p ") && !strings.Contains(line, " -st ")
}

// In helps pflag takes what stands in backquotes for the name of a flag's value. It is no place for a command.
func TestFlagValues(t *testing.T) {
	flags, h := 0, helpTexts{}
	line := regexp.MustCompile(`(?m)^ {2,6}(?:-\w, )?--([a-z-]+) (\S.*?)  +\S`)
	check := func(help string) (wrong []string) {
		for _, m := range line.FindAllStringSubmatch(help, -1) {
			flags++
			for word := range strings.FieldsSeq(m[2]) {
				if bin[word] != "" || strings.HasPrefix(word, "--") {
					wrong = append(wrong, "--"+m[1]+" "+m[2])
				}
			}
		}
		return wrong
	}
	for tool := range bin {
		h.walk(t, []string{tool}, func(command []string, help string) {
			for _, w := range check(help) {
				t.Errorf("%s --help has %q: a command stands where the flag's value is named", strings.Join(command, " "), w)
			}
		})
	}
	if flags < 100 {
		t.Errorf("%d flags with values were found, want at least 100", flags)
	}
	if wrong := check("      --parquet analyze --export   write each table\n"); len(wrong) == 0 {
		t.Error("a command in the place of a value was not reported")
	}
}

// No line of a help is too long for a window of 120 columns.
func TestHelpWidth(t *testing.T) {
	const most = 120
	lines, h := 0, helpTexts{}
	for tool := range bin {
		h.walk(t, []string{tool}, func(command []string, help string) {
			for line := range strings.Lines(help) {
				lines++
				if columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); columns > most {
					t.Errorf("%s --help has a line of %d columns, want %d at most: %s",
						strings.Join(command, " "), columns, most, line)
				}
			}
		})
	}
	if lines < 500 {
		t.Errorf("%d lines were looked at, want at least 500", lines)
	}
}

// Every command line in the documents names existing tools, subcommands and flags.
func TestDocumentedCommands(t *testing.T) {
	h, n := helpTexts{}, 0
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "fabric/*.md", "thesis-notes/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "\\\n", " ")
		for _, m := range codeLine.FindAllStringSubmatch(text, -1) {
			n += h.check(t, file, m[1])
			if waitsInChat(m[1]) {
				t.Errorf("%s: llama-cli waits in its chat without -st: %s", file, m[1])
			}
		}
		for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(m[1], "\n") {
				n += h.check(t, file, m[1])
			}
		}
	}
	if n < 100 {
		t.Errorf("%d commands were found in %q, want at least 100", n, files)
	}
	t.Logf("%d commands", n)
	checkExamples(t, h)
	// Make sure that the check can fail.
	fails := &testing.T{}
	if h.check(fails, "here", "sudo bin/prefetchd --pid 1 --nonsense"); !fails.Failed() {
		t.Error("a flag that does not exist was not reported")
	}
}
