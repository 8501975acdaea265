// Package top is a live view of running prefetchds, for a terminal: how fast their targets are, what is kept of the
// models and where, and what the disk does.
//
// A [Model] is a program of bubbletea: messages go in, a frame of text comes out. It asks a [Source] once a second, and
// knows no terminal itself. What was seen of one prefetchd is a watched value (watched.go). A frame is made of parts,
// each of which is a function of that (frame.go has their order, the files parts_*.go the parts).
//
// Everything that a target, a file or a control group is named passes [visible.Line] as it comes in. No length of a
// list in a report is believed.
package top
