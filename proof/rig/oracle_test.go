package rig

import "testing"

func TestATopicBeginsWithWhatIsNoRepeat(t *testing.T) {
	for _, c := range []struct {
		numbers []uint64
		begins  uint64
	}{
		{[]uint64{54, 55, 56}, 54},
		{[]uint64{54, 55, 40, 41, 54, 55, 57}, 54}, // the relay went back to 40, which the topic before this one had
		{[]uint64{54, 55, 40, 56}, 40},             // 40 came too late
		{[]uint64{54, 40, 41, 55, 30, 54, 55}, 40}, // too late, and then a repeat
		{[]uint64{54, 54, 20, 30, 54, 60, 10, 20, 54}, 54},
	} {
		if got := Begins(c.numbers); got != c.begins {
			t.Errorf("%v begins with %d, want %d", c.numbers, got, c.begins)
		}
	}
}
