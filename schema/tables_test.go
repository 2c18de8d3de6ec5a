package schema

import "testing"

func TestShardGroupsShareTheShardsAmongThem(t *testing.T) {
	t.Parallel()
	for groups := 1; groups <= ShardCount; groups++ {
		next := 0
		for group := range groups {
			first, last := Shards(group, groups)
			if n := last - first + 1; first != next || n < ShardCount/groups || n > ShardCount/groups+1 {
				t.Errorf("group %d of %d has the shards %d to %d, want about %d from %d on", group, groups, first, last,
					ShardCount/groups, next)
			}
			next = last + 1
		}
		if next != ShardCount {
			t.Errorf("%d groups have %d shards", groups, next)
		}
	}
}
