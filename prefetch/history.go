package prefetch

// This file remembers how fast the target was in the last minutes, for people who look at it later.

import "time"

const (
	// HistoryBin is the time that one number of Detail.Speeds stands for.
	HistoryBin = 2 * time.Second
	// historyBins is how many of them are remembered: five minutes.
	historyBins = 150
)

// history has the tokens that the target generated, with help and without, in equal parts of the last minutes. A step
// counts for all parts that it lasted in, so that a slow target has a speed in each of them.
type history struct {
	began  time.Time // when the first part began
	bins   [historyBins]speedBin
	unseen time.Time // since when the target is not observed; zero: it is
}

// speedBin is one part of the time. It lies in history.bins at its number modulo their number.
type speedBin struct {
	number          int64
	tokens, seconds float64
	unseen          bool // the target was not observed at the end of this part
}

// add notes a step that has just ended.
func (h *history) add(ended time.Time, s step) {
	took := time.Duration(s.nanos)
	if s.tokens == 0 || took <= 0 {
		return
	}
	if h.began.IsZero() {
		h.began = ended.Add(-took)
	}
	to := ended.Sub(h.began)
	from := max(to-took, to-historyBins*HistoryBin, 0)
	for at := from; at < to; {
		number := int64(at / HistoryBin)
		stop := min(time.Duration(number+1)*HistoryBin, to)
		b := h.bin(number)
		b.seconds += (stop - at).Seconds()
		b.tokens += float64(s.tokens) * (stop - at).Seconds() / took.Seconds()
		at = stop
	}
}

// bin is the part with a number, which takes the place of one of long ago.
func (h *history) bin(number int64) *speedBin {
	b := &h.bins[number%historyBins]
	if b.number != number {
		*b = speedBin{number: number}
	}
	return b
}

// observe is told that the target is observed from now on, or that it is not.
func (h *history) observe(now time.Time, isSeen bool) {
	switch {
	case h.began.IsZero():
	case !isSeen && h.unseen.IsZero():
		h.unseen = now
	case isSeen && !h.unseen.IsZero():
		last := int64(now.Sub(h.began) / HistoryBin)
		first := max(int64(h.unseen.Sub(h.began)/HistoryBin), last-historyBins+1)
		for number := first; number < last; number++ {
			h.bin(number).unseen = true
		}
		h.unseen = time.Time{}
	}
}

// NotSeen is the speed of a time in which the target was not observed.
const NotSeen = -1

// speeds are the tokens per second of all parts that are remembered, the latest last. It is 0 for a part in which the
// target generated nothing, and NotSeen for one in which it was not observed. Parts before the first step are left out.
func (h *history) speeds(now time.Time) []float32 {
	if h.began.IsZero() {
		return nil
	}
	last := int64(now.Sub(h.began) / HistoryBin)
	first := max(last-historyBins+1, 0)
	speeds := make([]float32, 0, historyBins)
	for number := first; number <= last; number++ {
		b, speed := &h.bins[number%historyBins], float32(0)
		begins := h.began.Add(time.Duration(number) * HistoryBin)
		switch {
		case b.number == number && b.seconds > 0:
			speed = float32(b.tokens / b.seconds)
		case b.number == number && b.unseen, !h.unseen.IsZero() && begins.After(h.unseen):
			speed = NotSeen
		}
		speeds = append(speeds, speed)
	}
	return speeds
}
