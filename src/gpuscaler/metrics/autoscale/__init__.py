"""HorizontalPodAutoscalers from one annotation: ``gpuscaler.io/autoscale: "duty_cycle=60,min=1,max=8"``."""
