package seed

import (
	"slices"
	"testing"
)

func TestEachRunOfATestHasTheSameChanceWithOneSeed(t *testing.T) {
	t.Parallel()
	var runs [2][]uint64
	for i := range runs {
		t.Run("", func(t *testing.T) { runs[i] = []uint64{Rand(t).Uint64(), Rand(t).Uint64()} })
	}
	if !slices.Equal(runs[0], runs[1]) || runs[0][0] == runs[0][1] {
		t.Errorf("two generators in two runs: %d", runs)
	}
}
