/** gpuhook for the AWS CDK: one installation, and the queues of its GPU hosts. */
export { GpuhookStack, GpuhookStackProps } from './gpuhook-stack';
export { GpuHost, GpuHostProps } from './gpu-host';
