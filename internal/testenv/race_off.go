//go:build !race

package testenv

// raceDetector says that the race detector is built in.
const raceDetector = false
