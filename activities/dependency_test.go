package activities

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a0a4f4e3/sluice/inventory/ledger"
	"github.com/seed-a0a4f4e3/sluice/inventory/ledger/ledgertest"
	"github.com/seed-a0a4f4e3/sluice/policy"
)

// A dependency that anything but a success on the wanted version met would let a release out before what it stands on.
func TestAwaitDependency(t *testing.T) {
	record := func(version, state, of string, targets ...ledger.TargetRecord) ledger.Record {
		return ledger.Record{Rollout: "R", Of: of, Version: version, State: state, Sequence: 1, StartedAt: time.Unix(1, 0), Targets: targets}
	}
	target := func(name, state string) ledger.TargetRecord { return ledger.TargetRecord{Name: name, State: state} }
	for _, tt := range []struct {
		name   string
		kind   policy.DependencyKind
		record *ledger.Record
		want   string // of the error
		met    []string
		was    []string
	}{
		{name: "no rollout", kind: policy.WaitForEnvironment, want: `waiting for environment "x": it has had no rollout yet`},
		{name: "another version", kind: policy.WaitForEnvironment, record: ref(record("v1", "Succeeded", "")), want: "its last rollout is of v1, wanted is v2"},
		{name: "a going rollout", kind: policy.WaitForEnvironment, record: ref(record("v2", "Running", "")), want: "its rollout of v2 is Running"},
		{name: "failures", kind: policy.WaitForEnvironment, record: ref(record("v2", "SucceededWithFailures", "")), want: "its rollout of v2 is SucceededWithFailures"},
		{name: "taken back", kind: policy.WaitForEnvironment, record: ref(record("v2", "RolledBack", "Q")), want: "its last rollout, of v2, was taken back"},
		{name: "a success", kind: policy.WaitForEnvironment, record: ref(record("v2", "Succeeded", "", target("s", "Succeeded"))), met: []string{"a", "b"}},
		{name: "none of the targets", kind: policy.WaitForDeployment, record: ref(record("v2", "Running", "", target("a", "Failed"), target("c", "Succeeded"))), want: "its rollout of v2 has succeeded on 0 of the 2 targets that wait"},
		{name: "one of the targets", kind: policy.WaitForDeployment, record: ref(record("v2", "Running", "", target("a", "Failed"), target("b", "NoChange"))), met: []string{"b"}},
		{name: "a success that was known", kind: policy.WaitForEnvironment, record: ref(record("v2", "Succeeded", "", target("s", "Succeeded"))), was: []string{"a", "b"}, want: "it is met"},
		{name: "a success of nothing", kind: policy.WaitForEnvironment, record: ref(record("v2", "Succeeded", "", target("s", "Skipped"))), want: "its rollout of v2 succeeded on no target"},
		{name: "a success that was taken back since", kind: policy.WaitForEnvironment, record: ref(record("v2", "RolledBack", "Q")), was: []string{"a", "b"}},
		{name: "a success without one that went back by hand", kind: policy.WaitForEnvironment, record: ref(record("v2", "Succeeded", "", target("c", "RolledBack"))), want: "in its rollout of v2, c went back"},
		{name: "a target that went back since", kind: policy.WaitForDeployment, record: ref(record("v2", "Running", "", target("a", "Succeeded"), target("b", "RolledBack"))), was: []string{"a", "b"}, met: []string{"a"}},
		{name: "a rollout on its way back", kind: policy.WaitForDeployment, record: ref(record("v2", "RollingBack", "", target("a", "Succeeded"))), want: "its rollout of v2 is RollingBack"},
		{name: "a rollout that holds", kind: policy.WaitForDeployment, record: ref(record("v2", "Holding", "", target("a", "Succeeded"))), want: "its rollout of v2 is Holding"},
		{name: "a target of another version", kind: policy.WaitForDeployment, record: ref(record("v3", "Succeeded", "", target("a", "Succeeded"))), want: "its last rollout is of v3, wanted is v2"},
		{name: "a target", kind: policy.WaitForTarget, want: "a target is waited for inside of the rollout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			memory := ledgertest.NewMemory()
			in := DependencyInput{Kind: tt.kind, Name: "x", Environment: "prod", Deployment: "web", Version: "v2", Targets: []string{"a", "b"}, Met: tt.was}
			if tt.record != nil {
				r := *tt.record
				if r.Environment, r.Deployment = "x", "web"; tt.kind == policy.WaitForDeployment {
					r.Environment, r.Deployment = "prod", "x"
				}
				if err := memory.PutRecord(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			out, err := (&Activities{Log: memory}).AwaitDependency(t.Context(), in)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %+v and %v, want an error with %q", out, err, tt.want)
				}
				return
			}
			if err != nil || !slices.Equal(out.Met, tt.met) {
				t.Errorf("got %+v and %v, want met %v", out, err, tt.met)
			}
		})
	}
}

func ref(r ledger.Record) *ledger.Record { return &r }
