FROM registry.invalid/team/base:1
