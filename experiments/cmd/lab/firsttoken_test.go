package main

// This file tests "lab firsttoken": its flags, its errors and its output.

import "testing"

func TestFirstTokenUsage(t *testing.T) {
	testUsage(t, "firsttoken", []usageTest{
		{nil, "no model"},
		{[]string{"-m", "x", "--x", "0.5", "--limit", "1GB"}, "one limit"},
		{[]string{"-m", "x", "--x", "-1"}, "--x"},
		{[]string{"-m", "x", "--limit", "much"}, `--limit "much"`},
		{[]string{"-m", "x", "--repeat", "0"}, "--repeat 0"},
		{[]string{"-m", "x", "--tokens", "0"}, "--tokens 0"},
		{[]string{"-m", "x", "--readahead", "-1"}, "--readahead -1"},
		{[]string{"-m", "x", "--start", "exec"}, "NAME=COMMAND"},
		{[]string{"-m", "x", "--start", "plain=x"}, "NAME=COMMAND"},
	})
}
