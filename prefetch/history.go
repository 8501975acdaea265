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
	began time.Time // when the first part began
	bins  [historyBins]speedBin
}

// speedBin is one part of the time. It lies in history.bins at its number modulo their number.
type speedBin struct {
	number          int64
	tokens, seconds float64
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
		b := &h.bins[number%historyBins]
		if b.number != number {
			*b = speedBin{number: number}
		}
		b.seconds += (stop - at).Seconds()
		b.tokens += float64(s.tokens) * (stop - at).Seconds() / took.Seconds()
		at = stop
	}
}

// speeds are the tokens per second of all parts that are remembered, the latest last. It is 0 for a part in which the
// target generated nothing. Parts before the first step are left out.
func (h *history) speeds(now time.Time) []float32 {
	if h.began.IsZero() {
		return nil
	}
	last := int64(now.Sub(h.began) / HistoryBin)
	first := max(last-historyBins+1, 0)
	speeds := make([]float32, 0, historyBins)
	for number := first; number <= last; number++ {
		b, speed := &h.bins[number%historyBins], float32(0)
		if b.number == number && b.seconds > 0 {
			speed = float32(b.tokens / b.seconds)
		}
		speeds = append(speeds, speed)
	}
	return speeds
}
