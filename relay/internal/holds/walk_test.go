package holds

import (
	"testing"
	"time"
)

func TestThePagesOfAWalkAdaptToTheServer(t *testing.T) {
	t.Parallel()
	var w Walk
	size := func() int { return min(10_000, w.size) }
	for range 10 {
		w.adapt(max(size(), firstPage), firstPage, time.Millisecond)
	}
	if size() != 10_000 {
		t.Errorf("%d on a fast server", size())
	}
	w.adapt(1000, 1000, 2*slowPage)
	if size() != 500 {
		t.Errorf("%d after a slow page of 1000", size())
	}
	for range 20 {
		w.adapt(size(), size(), time.Minute)
	}
	if size() != smallestPage {
		t.Errorf("%d on a slow server", size())
	}
	w.adapt(size(), size(), time.Millisecond)
	if size() != 2*smallestPage {
		t.Errorf("%d when it is fast again", size())
	}
}
